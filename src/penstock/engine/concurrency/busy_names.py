"""Names of keys that a command may not use without a check: locked keys, and keys of queued LAZY commands.

The inner loop compares a command's keys with this one table, so a command that touches none of these keys stays on the
fast path while others are locked or queued. A name stands for its key in every database, and if the positions of the
keys depend on the arguments, all arguments are compared: a hit only means that the command goes through dispatch, where
locks.py and lazy.py check exactly.

Rejected: closing the fast path while anything is queued. One LAZY command of one client slowed all others down to a
tenth.

Owned by the loop thread.
"""

from __future__ import annotations


class BusyNames:
    """Counts the reasons for which each name is in `table`."""

    __slots__ = ("table",)

    def __init__(self) -> None:
        self.table: dict[bytes, int] = {}  # never replaced: the inner loop of each connection holds it

    def add(self, name: bytes) -> None:
        self.table[name] = self.table.get(name, 0) + 1

    def remove(self, name: bytes) -> None:
        count = self.table[name] - 1
        if count:
            self.table[name] = count
        else:
            del self.table[name]
