"""The rows about slow commands: how long other clients wait.

The figure of a row is the worst wait of any bystander; below it are the other waits and the time of the slow command
itself, which is the price. `idle` is the worst wait in the second before: a tenth of Redis's wait may be less than
that, and then no server can show it on this machine. A wait no longer than `idle` counts as none. The part of the worst
waits that the server itself caused is at most `held` and at least `loop`: what remains of `worst` on a quiet machine.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.bench.bystanders import Notice, table_of_notices, watch
from penstock.bench.load import drive
from penstock.bench.row import Measure, Row
from penstock.bench.servers import Running
from penstock.protocol.resp import pack

MILLION = 1_000_000
_BATCH = 1000
_FIRST = 10_000_000  # eight digits in every number, so that the size of a reply is known


def _members(first: int, count: int) -> list[bytes]:
    """Numbers in an order that gives no implementation an advantage."""
    return [b"%d" % (_FIRST + first + at * 7_368_787 % count) for at in range(count)]


def _fill(server: Running, command: bytes, key: bytes, words: list[bytes], batch: int = _BATCH) -> None:
    """Run a command with all these words, so many at a time, after its key if it has one."""
    head = (command, key) if key else (command,)
    batches = [pack(*head, *words[at : at + batch]) for at in range(0, len(words), batch)]
    drive(server.port, batches, 1, len(batches), 1, b"\n")


def _array(count: int) -> int:
    """The size of a reply of so many numbers."""
    return len(b"*%d\r\n" % count) + count * len(b"$8\r\n12345678\r\n")


def _two_sets(server: Running, count: int) -> tuple[bytes, int]:
    """Two sets that have half of their members in common."""
    _fill(server, b"SADD", b"one", _members(0, count))
    _fill(server, b"SADD", b"other", _members(count // 2, count))
    return pack(b"SINTERSTORE", b"both", b"one", b"other"), 1


def _a_set(server: Running, count: int) -> None:
    _fill(server, b"SADD", b"key", _members(0, count))


def _a_list(server: Running, count: int) -> None:
    _fill(server, b"RPUSH", b"key", _members(0, count))


def _a_hash(server: Running, count: int) -> None:
    _fill(server, b"HSET", b"key", [word for member in _members(0, count) for word in (member, member)], 2 * _BATCH)


def _keys(server: Running, count: int) -> None:
    _fill(server, b"MSET", b"", [word for member in _members(0, count) for word in (member, member)], 2 * _BATCH)


def _a_board(server: Running, count: int) -> None:
    """A sorted set that was not read in order yet. Its scores have eight digits too, so that all sizes are known."""
    members = _members(0, count)
    rows = [word for at, member in enumerate(members) for word in (b"%d" % (_FIRST + at % 99_991), member)]
    _fill(server, b"ZADD", b"key", rows, 2 * _BATCH)


def _a_read_board(server: Running, count: int) -> None:
    """A sorted set that was read in order before."""
    _a_board(server, count)
    with server.client() as client:
        client.zrange("key", 0, 0)


def _a_weighed_list(server: Running, count: int) -> None:
    _keys(server, count)
    _a_list(server, count)


def _a_list_of_users(server: Running, count: int) -> None:
    """A list, and for each element a hash with one field."""
    writes = [pack(b"HSET", b"user:" + member, b"age", member) for member in _members(0, count)]
    batches = [b"".join(writes[at : at + _BATCH]) for at in range(0, count, _BATCH)]
    drive(server.port, batches, 1, len(batches), _BATCH, b"\n")
    _a_list(server, count)


def _a_dump(server: Running, count: int) -> tuple[bytes, int]:
    """A server's own DUMP of a sorted set, to be restored: every server has its own format."""
    _a_board(server, count)
    with server.client() as client:
        payload = client.dump("key")
        assert payload is not None
    return pack(b"RESTORE", b"new", b"0", payload), 1


class _Case:
    """Fills a key, and gives a command and the size of its reply.

    `{n}` is the number of elements, `{half}` half of it.
    """

    def __init__(
        self, fill: Callable[[Running, int], None], line: str, size: Callable[[int], int] = lambda count: 1
    ) -> None:
        self._fill, self._line, self._size = fill, line, size

    def __call__(self, server: Running, count: int) -> tuple[bytes, int]:
        self._fill(server, count)
        return pack(*self._line.format(n=count, half=count // 2).encode().split()), self._size(count)


class Stall:
    """Measures one slow command, and keeps the figures for the report."""

    def __init__(self, prepare: Callable[[Running, int], tuple[bytes, int]], count: int) -> None:
        self._prepare = prepare
        self._count = count
        self._notices: dict[str, list[Notice]] = {}

    def measure(self, server: Running, scale: float) -> float:
        """The worst wait of a bystander, in milliseconds."""
        request, reply_size = self._prepare(server, max(int(self._count * scale), _BATCH))
        notice = watch(server, [(request, reply_size)])
        self._notices.setdefault(server.name, []).append(notice)
        return notice.worst

    def report(self) -> str:
        return table_of_notices(self._notices)


def _row(name: str, what: str, target: float | None, stall: Stall) -> Row:
    measure: Measure = stall.measure
    return Row(f"stall.{name}", f"worst wait of others, {what}", "ms", target, measure, True, report=stall.report)


def _million(name: str, what: str, case: _Case, target: float | None = 0.1) -> Row:
    return _row(name, what, target, Stall(case, MILLION))


def _half(count: int) -> int:
    return _array(count // 2)


def _half_with_key(count: int) -> int:
    return len(b"*2\r\n$3\r\nkey\r\n") + _half(count)


def _half_of_rows_with_key(count: int) -> int:
    """Each member and its score are an array of two."""
    return _half_with_key(count) + count // 2 * (len(b"*2\r\n") + len(b"$8\r\n12345678\r\n"))


def _scanned(count: int) -> int:
    return len(b"*2\r\n$1\r\n0\r\n") + _array(count)


def _scanned_pairs(count: int) -> int:
    return len(b"*2\r\n$1\r\n0\r\n") + _array(2 * count)


STALL_ROWS = [
    _row("sinterstore", "SINTERSTORE of two 2M sets", 0.1, Stall(_two_sets, 2 * MILLION)),
    _row("smembers", "SMEMBERS of 2M", 0.1, Stall(_Case(_a_set, "SMEMBERS key", _array), 2 * MILLION)),
    _row("del", "DEL of a 2M set", 0.1, Stall(_Case(_a_set, "DEL key"), 2 * MILLION)),
    _million("sort", "SORT of 1M", _Case(_a_list, "SORT key", _array)),
    _million("zrange", "first ZRANGE of 1M written", _Case(_a_board, "ZRANGE key 0 9", lambda _: _array(10)), None),
    _million("srandmember", "SRANDMEMBER 500k of 1M", _Case(_a_set, "SRANDMEMBER key {half}", _half)),
    _million("hrandfield", "HRANDFIELD 500k of 1M", _Case(_a_hash, "HRANDFIELD key {half}", _half)),
    _million("zrandmember", "ZRANDMEMBER 500k of 1M", _Case(_a_board, "ZRANDMEMBER key {half}", _half)),
    _million("spop", "SPOP 500k of 1M", _Case(_a_set, "SPOP key {half}", _half)),
    _million("srandmember.draws", "SRANDMEMBER -1M", _Case(_a_set, "SRANDMEMBER key -{n}", _array)),
    _million("hrandfield.draws", "HRANDFIELD -1M", _Case(_a_hash, "HRANDFIELD key -{n}", _array)),
    _million("zrandmember.draws", "ZRANDMEMBER -1M", _Case(_a_board, "ZRANDMEMBER key -{n}", _array)),
    _million("scan", "SCAN of 1M in one call", _Case(_keys, "SCAN 0 COUNT {n}", _scanned)),
    _million("sscan", "SSCAN of 1M in one call", _Case(_a_set, "SSCAN key 0 COUNT {n}", _scanned)),
    _million("hscan", "HSCAN of 1M in one call", _Case(_a_hash, "HSCAN key 0 COUNT {n}", _scanned_pairs)),
    _million("zscan", "ZSCAN of 1M in one call", _Case(_a_board, "ZSCAN key 0 COUNT {n}", _scanned_pairs)),
    _million("dump", "DUMP of a sorted set of 1M", _Case(_a_board, "DUMP key")),
    _million("lpos", "LPOS of what is not in 1M", _Case(_a_list, "LPOS key none")),
    _million("linsert", "LINSERT in the middle of 1M", _Case(_a_list, "LINSERT key BEFORE 10000001 new"), None),
    _million("lrem", "LREM of one of 1M", _Case(_a_list, "LREM key 0 10000001")),
    _million("ltrim", "LTRIM of 1M to a half", _Case(_a_list, "LTRIM key {half} -1")),
    _million("lpop", "LPOP of 500k of 1M", _Case(_a_list, "LPOP key {half}", _half)),
    _million("zremrangebyrank", "ZREMRANGEBYRANK of half of 1M", _Case(_a_read_board, "ZREMRANGEBYRANK key 0 {half}")),
    _million("zpopmin", "ZPOPMIN of 500k of 1M", _Case(_a_read_board, "ZPOPMIN key {half}", _array)),
    _million("sort.by", "SORT of 1M BY a key each", _Case(_a_weighed_list, "SORT key BY *", _array)),
    _million("sort.store", "SORT of 1M BY a key each, STORE", _Case(_a_weighed_list, "SORT key BY * STORE new")),
    _million("sort.get", "SORT of 1M GET a key each, STORE", _Case(_a_weighed_list, "SORT key GET * STORE new")),
    _million("sort.hash", "SORT of 1M BY a hash each", _Case(_a_list_of_users, "SORT key BY user:*->age", _array)),
    _row("restore", "RESTORE of a sorted set of 1M", 0.1, Stall(_a_dump, MILLION)),
    _million("lmpop", "LMPOP of 500k of 1M", _Case(_a_list, "LMPOP 1 key LEFT COUNT {half}", _half_with_key)),
    _million(
        "zmpop", "ZMPOP of 500k of 1M", _Case(_a_read_board, "ZMPOP 1 key MIN COUNT {half}", _half_of_rows_with_key)
    ),
]
