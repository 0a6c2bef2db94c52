"""The commands of a server that write: EXACTLY_ONCE numbers them.

The server says it, in COMMAND: 77 kB, and 20 ms of its time. So a server also tells a digest of that table
(protocol/command_digest.py), and only a client that does not know the table by its digest asks for it. Known are the
table of this client's own version (declared.py), and those that were read in this process.

Rejected: only a table here (it would be wrong for modules and newer servers), and redis-py's list of reads (it knows
nothing of ours).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.client.engine.command_kinds import name_of
from penstock.client.engine.declared import COMMANDS, UNFLAGGED_WRITES, WRITES
from penstock.protocol.command_digest import command_digest

MOST_TABLES = 16
"""Tables that are kept in a process, for so many kinds of servers."""


class WriteCommands:
    """The server's commands that change something. Shared by threads: `decided` is only added to."""

    def __init__(self, known: Iterable[str], writes: Iterable[str]) -> None:
        self._known = frozenset(known)
        self._writes = frozenset(writes) | (UNFLAGGED_WRITES & self._known)
        self.decided: dict[Any, bool] = {}
        """By first word, as callers spell it; what is not here needs a closer look."""

    @classmethod
    def parse(cls, table: Iterable[Sequence[Any]]) -> WriteCommands:
        """From the reply to COMMAND, not decoded."""
        flags = {}
        for row in table:
            for each in (row, *(row[9] if len(row) > 9 else ())):
                flags[each[0].decode().upper().replace("|", " ")] = each[2]
        return cls(flags, [name for name, said in flags.items() if b"write" in said and b"readonly" not in said])

    def __contains__(self, arguments: Sequence[Any]) -> bool:
        head = arguments[0]
        decided = self.decided.get(head)
        if decided is None:
            name = name_of(arguments)
            # By name: the flags of a command do not depend on its arguments. Without a group TREAD changes nothing, and
            # the server would keep all that was read.
            if name == "TREAD":
                return any(
                    isinstance(word, str | bytes) and word.upper() in ("GROUP", b"GROUP") for word in arguments[4:]
                )
            decided = name in self._writes
            if name in self._known and " " not in name:
                self.decided[head] = decided
        return decided

    @property
    def has_once(self) -> bool:
        return "ONCEBEGIN" in self._known


_OWN = WriteCommands(COMMANDS, WRITES)
_KNOWN = frozenset(COMMANDS)


def only_reads(arguments: Sequence[Any]) -> bool:
    """Whether a command is one of Penstock's that changes nothing, so that it may run a second time."""
    return name_of(arguments) in _KNOWN and arguments not in _OWN


_by_digest: dict[str, WriteCommands] = {}


def known_table(digest: str) -> WriteCommands | None:
    """The table of this digest, if it is known."""
    if not _by_digest:
        _by_digest[command_digest(COMMANDS, WRITES)] = _OWN
    return _by_digest.get(digest)


def remember_table(digest: str, table: WriteCommands) -> None:
    """Keep a table that was read for the other connections of this process."""
    if len(_by_digest) < MOST_TABLES:
        _by_digest[digest] = table
