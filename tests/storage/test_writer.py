"""The writing end of the log: what is on disk when a reply leaves, with a loop and a disk that do as the test says."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.engine.session import Unconfirmed
from penstock.storage import batches
from penstock.storage.held_replies import send_all
from penstock.storage.switching_writer import SwitchingWriter
from penstock.storage.writer import LogFile


class StepLoop:
    """Runs callbacks when told to."""

    def __init__(self) -> None:
        self._callbacks: deque[Callable[[], None]] = deque()
        self._came = threading.Semaphore(0)

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        self._came.release()

    def run(self) -> None:
        """Everything that is ready."""
        while self._callbacks:
            self._callbacks.popleft()()

    def run_next_from_thread(self) -> None:
        """Wait for the thread to report, then run everything."""
        assert self._came.acquire(timeout=60), "the thread never came back"
        self.run()


class Disk:
    """A sync function that waits until the test lets it go on, or fails."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.failing = False
        self.count = 0

    def sync(self, descriptor: int) -> None:
        assert self.gate.acquire(timeout=60)
        self.count += 1
        if self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class Bench:
    """A writer with its loop, its disk and what was sent."""

    def __init__(self, path: Path, policy: str) -> None:
        self.path = path / "log.1.incr.aof"
        self.loop = StepLoop()
        self.disk = Disk()
        self.sent: list[bytes] = []
        self.troubles: list[str | None] = []
        self.writer = SwitchingWriter(LogFile(self.path), self.loop, policy, self.troubles.append, self.disk.sync)

    def set(self, key: bytes, reply: bytes = b"+OK\r\n") -> None:
        """A client's SET, as a connection and the engine pass it on."""
        self.writer.log([(0, [b"SET", key, b"1"])])
        self.reply(reply, unconfirmed=True)

    def reply(self, reply: bytes, unconfirmed: bool = False) -> None:
        if self.writer.pending:
            self.writer.hold(self.sent.append, [Unconfirmed(reply) if unconfirmed else reply])
        else:
            self.sent.append(reply)

    @property
    def keys(self) -> list[bytes]:
        """Keys of the SETs on disk."""
        return [argv[1] for _, commands in batches.read(self.path) for argv in commands if argv[0] == b"SET"]


@pytest.fixture
def always(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, "always")
    yield bench
    bench.disk.failing = False
    bench.disk.gate.release(100)
    bench.writer.close()


@pytest.fixture
def everysec(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, "everysec")
    yield bench
    bench.disk.failing = False
    bench.disk.gate.release(100)
    bench.writer.close()


def test_under_always_no_reply_leaves_before_the_sync(always: Bench) -> None:
    always.set(b"a")
    always.loop.run()
    assert always.sent == []
    always.disk.gate.release()
    always.loop.run_next_from_thread()
    assert always.sent == [b"+OK\r\n"]
    assert always.keys == [b"a"]


def test_a_read_waits_for_the_write_it_may_have_seen(always: Bench) -> None:
    always.set(b"a")
    always.loop.run()
    always.reply(b"read after a")
    always.set(b"b")
    always.reply(b"read after b")
    assert always.sent == []
    always.disk.gate.release()
    always.loop.run_next_from_thread()
    assert always.sent == [b"+OK\r\n", b"read after a"]
    always.disk.gate.release()
    always.loop.run_next_from_thread()
    assert always.sent == [b"+OK\r\n", b"read after a", b"+OK\r\n", b"read after b"]
    always.reply(b"nothing to wait for")
    assert always.sent[-1] == b"nothing to wait for"


def test_writes_that_arrive_during_a_sync_share_the_next_one(always: Bench) -> None:
    always.set(b"first")
    always.loop.run()
    for number in range(50):
        always.set(b"%d" % number)
    always.disk.gate.release(2)
    always.loop.run_next_from_thread()
    always.loop.run_next_from_thread()
    assert len(always.sent) == 51
    assert always.disk.count == 2


def test_a_refused_write_is_answered_with_an_error_and_kept(always: Bench) -> None:
    always.set(b"before")
    always.loop.run()
    always.disk.gate.release()
    always.loop.run_next_from_thread()
    always.disk.failing = True
    always.set(b"refused")
    always.reply(b"a read")
    always.loop.run()
    always.disk.gate.release()
    always.loop.run_next_from_thread()
    assert always.sent == [b"+OK\r\n", b"-MISCONF Errors writing to the AOF file: Input/output error\r\n", b"a read"]
    assert always.troubles == ["Input/output error"]
    assert always.keys == [b"before"], "the half-written batch was not cut off"
    always.reply(b"reads go on")
    assert always.sent[-1] == b"reads go on"
    always.disk.failing = False
    always.disk.gate.release()
    always.writer._last_try = 0.0
    always.writer.tick()
    always.loop.run_next_from_thread()
    assert always.troubles == ["Input/output error", None]
    assert always.keys == [b"before", b"refused"], "memory and log do not agree again"


def test_a_change_that_comes_while_the_disk_refuses_is_not_acknowledged(always: Bench) -> None:
    always.disk.failing = True
    always.set(b"refused")
    always.loop.run()
    always.disk.gate.release()
    always.loop.run_next_from_thread()
    always.set(b"late")  # a thread had begun it before
    always.reply(b"a read")
    refused = b"-MISCONF Errors writing to the AOF file: Input/output error\r\n"
    assert always.sent == [refused, refused, b"a read"]
    always.writer._last_try = 0.0
    always.writer.tick()  # the thread tries again
    always.set(b"later")
    always.reply(b"a read")
    assert always.sent[3:] == [refused, b"a read"], "they do not wait for it"
    always.disk.gate.release()
    always.loop.run_next_from_thread()
    always.disk.failing = False
    always.disk.gate.release()
    always.writer.drain()
    assert always.keys == [b"refused", b"late", b"later"]
    assert not always.writer.pending


def fail_to_sync(everysec: Bench) -> None:
    """Have a change written, and its sync fail."""
    everysec.set(b"a")
    everysec.loop.run()
    everysec.disk.failing = True
    everysec.disk.gate.release()
    everysec.writer._last_sync = 0.0
    everysec.writer.tick()
    everysec.loop.run_next_from_thread()


def test_what_came_after_a_failed_sync_is_written_when_there_is_a_new_base(everysec: Bench) -> None:
    fail_to_sync(everysec)
    everysec.set(b"late")
    assert everysec.sent[1:] == [b"-MISCONF Errors writing to the AOF file: Input/output error\r\n"]
    everysec.writer.recovered()
    everysec.reply(b"a read")
    everysec.loop.run()
    assert everysec.sent[2:] == [b"a read"]
    assert everysec.keys == [b"a", b"late"]


def test_only_replies_that_acknowledge_a_change_become_errors(always: Bench) -> None:
    always.disk.failing = True
    always.writer.log([(0, [b"SET", b"a", b"1"])])
    always.writer.hold(always.sent.append, [b":0\r\n", Unconfirmed(b"+OK\r\n"), b"$1\r\na\r\n"])
    always.loop.run()
    always.disk.gate.release()
    always.loop.run_next_from_thread()
    assert always.sent == [b":0\r\n-MISCONF Errors writing to the AOF file: Input/output error\r\n$1\r\na\r\n"]


def test_one_error_takes_the_place_of_all_pieces_of_a_reply(everysec: Bench) -> None:
    everysec.writer.log([(0, [b"LPOP", b"a", b"2"])])
    pieces = [b">a message\r\n", b"*2\r\n", b":1\r\n", memoryview(b":2\r\n"), Unconfirmed.behind(3), b":0\r\n"]
    everysec.writer.hold(everysec.sent.append, pieces)
    send_all([(everysec.sent.append, pieces)], b"-NO\r\n")
    everysec.loop.run()
    assert everysec.sent == [b">a message\r\n-NO\r\n:0\r\n", b">a message\r\n*2\r\n:1\r\n:2\r\n:0\r\n"]


def test_replies_wait_until_replicas_have_what_the_log_had(everysec: Bench) -> None:
    everysec.set(b"a")
    everysec.loop.run()
    everysec.writer.wait_for_replicas()
    everysec.reply(b"replicas confirm nothing here")
    everysec.writer.confirmed_by_replicas = True
    everysec.writer.wait_for_replicas()
    end = everysec.writer.file.end
    everysec.reply(b"a read")
    everysec.writer.confirm(end - 1)
    assert everysec.sent == [b"+OK\r\n", b"replicas confirm nothing here"]
    everysec.writer.confirm(end)
    everysec.reply(b"another")
    assert everysec.sent[2:] == [b"a read", b"another"]


def test_no_reply_waits_for_replicas_that_have_what_the_log_has(everysec: Bench) -> None:
    everysec.writer.confirmed_by_replicas = True
    everysec.set(b"a")
    everysec.loop.run()
    assert everysec.sent == []
    everysec.writer.confirm(everysec.writer.file.end)
    everysec.disk.gate.release(10)
    everysec.writer.drain()
    everysec.writer.switch(lambda: LogFile(everysec.path, everysec.writer.file.start), lambda error: None)
    assert everysec.writer.has_all and not everysec.writer.refuse_unconfirmed(lambda: None)
    everysec.reply(b"during the switch")
    everysec.loop.run_next_from_thread()
    everysec.reply(b"after it")
    assert everysec.sent == [b"+OK\r\n", b"during the switch", b"after it"]
    everysec.writer.wait_for_replicas()  # others came
    everysec.reply(b"a read")
    assert everysec.sent[3:] == []
    everysec.writer.confirm(everysec.writer.file.end)
    assert everysec.sent[3:] == [b"a read"]


def test_under_everysec_replies_leave_once_it_is_written(everysec: Bench) -> None:
    everysec.set(b"a")
    assert everysec.sent == []
    everysec.loop.run()
    assert everysec.sent == [b"+OK\r\n"]
    assert everysec.keys == [b"a"]
    assert everysec.disk.count == 0


def test_a_reply_leaves_once_its_change_is_written_also_while_a_sync_is_under_way(everysec: Bench) -> None:
    everysec.set(b"a")
    everysec.loop.run()
    everysec.writer._last_sync = 0.0
    everysec.writer.tick()
    everysec.set(b"b")
    assert everysec.sent == [b"+OK\r\n"]
    everysec.loop.run()
    assert everysec.sent == [b"+OK\r\n", b"+OK\r\n"] and everysec.disk.count == 0, "the sync held it up"
    assert everysec.keys == [b"a", b"b"], "a kill -9 would lose what was acknowledged"
    everysec.disk.gate.release(2)
    everysec.loop.run_next_from_thread()
    everysec.writer._last_sync = 0.0
    everysec.writer.tick()  # what was written behind the sync is synced by the next one
    everysec.loop.run_next_from_thread()
    assert everysec.disk.count == 2


def test_a_sync_that_is_under_way_when_the_next_is_due_is_counted_once(everysec: Bench) -> None:
    everysec.set(b"a")
    everysec.loop.run()
    everysec.writer._last_sync = 0.0
    everysec.writer.tick()
    everysec.set(b"b")
    everysec.loop.run()
    everysec.writer._last_sync = 0.0
    for _ in range(3):
        everysec.writer.tick()
    assert everysec.writer.delayed_syncs == 1


def test_a_failed_sync_asks_for_a_rewrite(everysec: Bench) -> None:
    fail_to_sync(everysec)
    assert everysec.writer.needs_rewrite and not everysec.writer.sync_works
    assert everysec.troubles == ["Input/output error"]
    everysec.disk.failing = False
    everysec.disk.gate.release()
    everysec.writer._last_sync = 0.0
    everysec.writer.tick()  # tries whether a sync works again
    everysec.loop.run_next_from_thread()
    assert everysec.writer.needs_rewrite and everysec.writer.sync_works
    assert everysec.troubles == ["Input/output error"], "what the failed sync was for may be lost"
    everysec.writer.recovered()
    assert everysec.troubles == ["Input/output error", None]


def test_a_unit_is_one_batch_between_multi_and_exec(everysec: Bench) -> None:
    everysec.writer.log([(0, [b"SET", b"a", b"1"]), (2, [b"INCR", b"b"])])
    everysec.loop.run()
    [(offset, commands)] = batches.read(everysec.path)
    assert offset == 0
    assert commands == [
        [b"MULTI"], [b"SELECT", b"0"], [b"SET", b"a", b"1"], [b"SELECT", b"2"], [b"INCR", b"b"], [b"EXEC"],
    ]  # fmt: skip


def test_select_is_written_only_when_the_database_changes_and_in_each_file(everysec: Bench, tmp_path: Path) -> None:
    for database in (1, 1, 0):
        everysec.writer.log([(database, [b"INCR", b"k"])])
    everysec.loop.run()
    everysec.disk.gate.release()
    everysec.writer.drain()
    everysec.writer.write_all()
    outcomes: list[OSError | None] = []
    everysec.writer.switch(lambda: LogFile(tmp_path / "log.2.incr.aof"), outcomes.append)
    everysec.disk.gate.release()
    everysec.loop.run_next_from_thread()
    assert outcomes == [None]
    everysec.writer.log([(0, [b"INCR", b"k"])])
    everysec.loop.run()
    names = [argv[0] for _, commands in batches.read(everysec.path) for argv in commands]
    assert names == [b"SELECT", b"INCR", b"INCR", b"SELECT", b"INCR"]
    [(_, commands)] = batches.read(tmp_path / "log.2.incr.aof")
    assert commands == [[b"SELECT", b"0"], [b"INCR", b"k"]]


def test_drain_leaves_everything_on_disk_and_every_reply_sent(always: Bench) -> None:
    always.set(b"a")
    always.loop.run()
    always.set(b"b")
    always.disk.gate.release(2)
    always.writer.drain()
    assert always.keys == [b"a", b"b"]
    assert always.sent == [b"+OK\r\n", b"+OK\r\n"]
    assert always.disk.count == 2


def test_a_value_edited_in_place_after_it_was_logged_is_logged_as_it_was(everysec: Bench) -> None:
    value = bytearray(b"before")
    everysec.writer.log([(0, [b"SET", b"a", value])])  # type: ignore[list-item]
    value += b" and after"
    everysec.loop.run()
    [(_, commands)] = batches.read(everysec.path)
    assert commands[-1] == [b"SET", b"a", b"before"]


def test_arguments_of_any_length_are_read_back(everysec: Bench) -> None:
    logged = [[b"SET", b"k", b"v" * length] for length in (0, 1, 1023, 1024, 100_000)]
    logged += [[b"DEL", b"\r\n#SUM "], [b"X", b"", b"", b"\r\n"]]
    for argv in logged:
        everysec.writer.append(0, argv)
    everysec.loop.run()
    [(_, commands)] = batches.read(everysec.path)
    assert commands[1:] == logged


def test_a_batch_that_was_refused_may_carry_two_times(always: Bench) -> None:
    always.writer.timestamps = True
    always.disk.failing = True
    always.set(b"a")
    always.loop.run()
    always.disk.gate.release()
    always.loop.run_next_from_thread()
    always.disk.failing = False
    always.disk.gate.release()
    always.writer._last_try = 0.0
    always.writer._last_stamp = 0
    always.writer.tick()
    always.loop.run_next_from_thread()
    assert always.path.read_bytes().count(b"#TS:") == 2
    assert always.keys == [b"a"]


def test_replies_of_many_connections_leave_in_order_and_all_their_commands_are_there(everysec: Bench) -> None:
    for client in range(20):
        for number in range(50):
            everysec.writer.append(client % 3, [b"SET", b"%d:%d" % (client, number), b"1"])
        everysec.reply(b"%d" % client)
    everysec.loop.run()
    assert everysec.sent == [b"%d" % client for client in range(20)]
    assert everysec.keys == [b"%d:%d" % (client, number) for client in range(20) for number in range(50)]


def test_a_client_that_cannot_be_answered_delays_no_other_reply(
    always: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(data: bytes) -> None:
        raise RuntimeError("a bug")

    always.writer.log([(0, [b"SET", b"k", b"v"])])
    always.writer.hold(broken, [Unconfirmed(b"+OK\r\n")])
    always.writer.hold(always.sent.append, [Unconfirmed(b"+OK\r\n")])
    always.loop.run()
    always.disk.gate.release()
    always.loop.run_next_from_thread()
    assert always.sent == [b"+OK\r\n"]
    assert "a bug" in caplog.text


def test_large_values_are_written_without_a_copy(everysec: Bench) -> None:
    large = bytes(range(256)) * 256
    values = [large, b"small", large[1:], b"", large[2:]]
    seen: list[bytes] = []
    everysec.writer.on_written = seen.extend
    for number, value in enumerate(values):
        everysec.writer.log([(number % 2, [b"SET", b"%d" % number, value, b"KEEPTTL"])])
    everysec.writer.append(0, [b"MSET", *[word for n in range(200) for word in (b"k%d" % n, large[n:])]])
    everysec.loop.run()
    assert [piece for piece in seen if piece is large]
    ((_, commands),) = batches.read(everysec.path)
    written = [argv for argv in commands if argv[0] != b"SELECT"]
    assert [argv[2] for argv in written[:-1]] == values
    assert written[-1][2::2] == [large[n:] for n in range(200)]
    assert everysec.writer.file.size == everysec.path.stat().st_size


@pytest.mark.parametrize("most", [1, 7, 70_000, 100_000])
def test_a_disk_that_takes_a_part_at_a_time_gets_all(
    everysec: Bench, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    write, step = os.write, max(most, 1000)
    monkeypatch.setattr(os, "writev", lambda number, pieces: write(number, b"".join(pieces)[:most]))
    monkeypatch.setattr(os, "write", lambda number, data: write(number, bytes(data[:step])))
    values = [b"a" * 70_000, b"b", b"c" * 40_000]
    for number, value in enumerate(values):
        everysec.writer.append(0, [b"SET", b"%d" % number, value])
    everysec.loop.run()
    ((_, commands),) = batches.read(everysec.path)
    assert [argv[2] for argv in commands if argv[0] == b"SET"] == values


def test_a_batch_of_large_values_that_the_disk_refused_is_written_later(
    everysec: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"a" * 70_000, b"b", b"c" * 40_000]
    for number, value in enumerate(values):
        everysec.writer.append(0, [b"SET", b"%d" % number, value])
    with monkeypatch.context() as full:

        def refuse(number: int, pieces: list[bytes]) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        full.setattr(os, "writev", refuse)
        everysec.loop.run()
    assert everysec.troubles == [os.strerror(errno.ENOSPC)]
    everysec.disk.gate.release()
    everysec.writer.drain()
    ((_, commands),) = batches.read(everysec.path)
    assert [argv[2] for argv in commands if argv[0] == b"SET"] == values


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_what_is_logged_during_a_switch_goes_to_the_next_file_and_its_reply_waits(tmp_path: Path, policy: str) -> None:
    bench = Bench(tmp_path, policy)
    bench.set(b"a", b"for a")
    bench.writer.write_all()
    assert bench.keys == [b"a"]
    outcomes: list[OSError | None] = []
    path = tmp_path / "log.2.incr.aof"
    bench.writer.switch(lambda: LogFile(path, bench.writer.file.end), outcomes.append)
    bench.set(b"b", b"for b")
    bench.loop.run()
    assert bench.sent == ([] if policy == "always" else [b"for a"])
    bench.disk.gate.release(2)
    bench.writer.drain()
    assert outcomes == [None]
    assert bench.sent == [b"for a", b"for b"]
    assert bench.keys == [b"a"]
    assert [argv for _, commands in batches.read(path) for argv in commands] == [
        [b"SELECT", b"0"], [b"SET", b"b", b"1"],
    ]  # fmt: skip
    bench.disk.gate.release(100)
    bench.writer.close()


def test_a_switch_whose_sync_fails_continues_the_file_and_refuses(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "always")
    bench.set(b"a", b"for a")
    bench.writer.write_all()
    outcomes: list[OSError | None] = []
    bench.disk.failing = True
    bench.writer.switch(lambda: LogFile(tmp_path / "log.2.incr.aof"), outcomes.append)
    bench.disk.gate.release()
    bench.loop.run_next_from_thread()
    assert [type(outcome) for outcome in outcomes] == [OSError]
    assert bench.writer.needs_rewrite
    assert bench.sent == [b"-MISCONF Errors writing to the AOF file: Input/output error\r\n"]
    assert bench.writer.file.path == bench.path
    bench.disk.failing = False
    bench.disk.gate.release(100)
    bench.writer.close()
