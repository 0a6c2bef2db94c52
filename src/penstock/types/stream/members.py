"""The named members of a group: what each of them holds, and when it last asked.

A member keeps the runs that it was given, with their tokens. What it holds now is what is still leased under them, so
an acknowledgement or a new delivery has nothing to do here. Runs that are over are swept out when there are twice as
many as after the last sweep.

Names are not dumped and not logged: they are about connections, and a restart ends all of those. Leases stay.

Rejected: the name in each lease, which every lease pays for and which only a scan finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.types.stream.lease_chunk import Lease
from penstock.types.stream.leases import Leases
from penstock.types.stream.nodes import Range

MOST = 10_000  # names in a group; beyond that the one that asked longest ago is forgotten
_FEW = 16  # runs that are not worth a sweep


class Member:
    """One member."""

    __slots__ = ("_sweep_at", "asked", "reader", "release", "runs")

    def __init__(self) -> None:
        self.asked = 0  # when, as lease time
        self.reader = 0  # the connection that asked last
        self.release = False  # whether what it holds is given back when that ends
        self.runs: list[tuple[int, int, int]] = []  # start, end, token
        self._sweep_at = _FEW

    def got(self, leases: Iterable[Lease], pending: Leases) -> None:
        """Remember what was delivered to it; `pending` are all leases of its group."""
        runs = self.runs
        runs += [(lease.start, lease.end, lease.token) for lease in leases]
        if len(runs) > self._sweep_at:
            self.runs = [run for run in runs if pending.held(*run)]
            self._sweep_at = max(2 * len(self.runs), _FEW)

    def holds(self, pending: Leases) -> list[Range]:
        """What is still leased under its deliveries."""
        return [part for run in self.runs for part in pending.held(*run)]


class Members:
    """The members of a group by name, the one that asked last at the end.

    >>> members = Members()
    >>> members.asked(b"ada", now=1000, reader=7, release=False).asked
    1000
    """

    __slots__ = ("by_name",)

    def __init__(self) -> None:
        self.by_name: dict[bytes, Member] = {}

    def asked(self, name: bytes, now: int, reader: int, release: bool) -> Member:
        """A connection asks for messages under a name."""
        member = self.by_name.pop(name, None) or Member()
        self.by_name[name] = member
        member.asked, member.reader, member.release = now, reader, release
        if len(self.by_name) > MOST:
            self.by_name.pop(next(iter(self.by_name))).release = False
        return member

    def forget(self, before: int, pending: Leases, is_waiting: Callable[[int], bool]) -> None:
        """Forget those that asked before a time, hold nothing, and whose connection does not wait for messages."""
        for name, member in list(self.by_name.items()):
            if member.asked >= before:
                return
            if not is_waiting(member.reader) and not member.holds(pending):
                del self.by_name[name]

    def size(self) -> int:
        """About how many bytes of memory it takes."""
        return sum(250 + len(name) + 130 * len(member.runs) for name, member in self.by_name.items())
