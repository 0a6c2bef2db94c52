"""The rows about slow commands: how long the others wait meanwhile.

The figure of a row is the worst wait of any bystander; what is below it says how the rest of them fared and how long
the slow command itself took, which is the price.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from penstock.bench.bystanders import Notice, watch
from penstock.bench.load import drive
from penstock.bench.row import Measure, Row
from penstock.bench.servers import Running
from penstock.protocol.resp import pack

MILLION = 1_000_000
_BATCH = 1000
_FIRST = 10_000_000  # eight digits in every number, so that the size of a reply is known


def _members(first: int, count: int) -> list[bytes]:
    """Numbers in an order that nobody could take advantage of."""
    return [b"%d" % (_FIRST + first + at * 7_368_787 % count) for at in range(count)]


def _fill(server: Running, command: bytes, key: bytes, members: list[bytes]) -> None:
    batches = [pack(command, key, *members[at : at + _BATCH]) for at in range(0, len(members), _BATCH)]
    drive(server.port, batches, 1, len(batches), 1, b"\n")


def _two_sets(server: Running, count: int) -> tuple[bytes, int]:
    """Two sets that have half of their members in common."""
    _fill(server, b"SADD", b"one", _members(0, count))
    _fill(server, b"SADD", b"other", _members(count // 2, count))
    return pack(b"SINTERSTORE", b"both", b"one", b"other"), 1


def _a_set(server: Running, count: int) -> tuple[bytes, int]:
    _fill(server, b"SADD", b"set", _members(0, count))
    return pack(b"SMEMBERS", b"set"), len(b"*%d\r\n" % count) + count * len(b"$8\r\n12345678\r\n")


def _a_doomed_set(server: Running, count: int) -> tuple[bytes, int]:
    _fill(server, b"SADD", b"set", _members(0, count))
    return pack(b"DEL", b"set"), 1


def _a_list(server: Running, count: int) -> tuple[bytes, int]:
    _fill(server, b"RPUSH", b"list", _members(0, count))
    return pack(b"SORT", b"list"), len(b"*%d\r\n" % count) + count * len(b"$8\r\n12345678\r\n")


def _board(server: Running, count: int) -> tuple[bytes, int]:
    """A sorted set that nobody has read in order yet."""
    members = _members(0, count)
    rows = [word for at, member in enumerate(members) for word in (b"%d" % (at % 99_991), member)]
    batches = [pack(b"ZADD", b"board", *rows[at : at + 2 * _BATCH]) for at in range(0, len(rows), 2 * _BATCH)]
    drive(server.port, batches, 1, len(batches), 1, b"\n")
    return pack(b"ZRANGE", b"board", b"0", b"9"), len(b"*10\r\n") + 10 * len(b"$8\r\n12345678\r\n")


class Stall:
    """Measures one slow command, and remembers what there is to say about it."""

    def __init__(self, prepare: Callable[[Running, int], tuple[bytes, int]], count: int) -> None:
        self._prepare = prepare
        self._count = count
        self._notices: dict[str, list[Notice]] = {}

    def measure(self, server: Running, scale: float) -> float:
        """The worst wait of a bystander, in milliseconds."""
        request, reply_size = self._prepare(server, max(int(self._count * scale), _BATCH))
        notice = watch(server, request, reply_size)
        self._notices.setdefault(server.name, []).append(notice)
        return notice.worst

    def report(self) -> str:
        lines = [f"{'median of rounds, ms':>22} {'worst':>9} {'p99.9':>9} {'others/s':>9} {'command':>9}"]
        for name, notices in self._notices.items():
            worst, nearly, rate, command = (
                statistics.median(getattr(notice, figure) for notice in notices) for figure in Notice.__slots__
            )
            lines.append(f"{name:>22} {worst:>9.1f} {nearly:>9.2f} {rate:>9,.0f} {command:>9,.0f}")
        return "\n".join(lines)


def _row(name: str, what: str, target: float | None, stall: Stall) -> Row:
    measure: Measure = stall.measure
    return Row(f"stall.{name}", f"worst wait of others, {what}", "ms", target, measure, True, report=stall.report)


STALL_ROWS = [
    _row("sinterstore", "SINTERSTORE of two 2M sets", 0.1, Stall(_two_sets, 2 * MILLION)),
    _row("smembers", "SMEMBERS of 2M", 0.1, Stall(_a_set, 2 * MILLION)),
    _row("sort", "SORT of 1M", 0.1, Stall(_a_list, MILLION)),
    _row("del", "DEL of a 2M set", 0.1, Stall(_a_doomed_set, 2 * MILLION)),
    _row("zrange", "first ZRANGE of 1M written", None, Stall(_board, MILLION)),
]
