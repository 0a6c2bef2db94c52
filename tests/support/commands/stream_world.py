"""An engine without a server for tests of stream commands: blocking clients, a clock set by the test, restarts from the
log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hiredis
import pyarrow as pa
import pytest

from penstock import commands
from penstock.engine.declarations import REGISTRY, Argv, Reply
from penstock.engine.dispatch import Engine
from penstock.engine.interfaces import LogEntry
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import NO_REPLY, encode
from penstock.storage import snapshot
from penstock.testing.clock import ManualClock, ManualTimers
from penstock.types.stream.segments import Files
from penstock.types.stream.stream import Stream

Word = str | bytes | int

BLOCKED = "the client is blocked"


def decoded(wire: bytes) -> Any:
    """A RESP2 reply as Python values."""
    reader = hiredis.Reader()
    reader.feed(wire)
    reply = reader.gets()
    assert not reader.has_data(), wire
    return reply


def arrow(tags: list[bytes], entries: list[bytes], times: list[int] | None = None) -> bytes:
    """An Arrow stream that TWRITE takes."""
    columns = {} if times is None else {"time": pa.array(times, pa.int64())}
    return ipc(pa.table({**columns, "tag": pa.array(tags, pa.binary()), "entry": pa.array(entries, pa.binary())}))


def ipc(table: Any) -> bytes:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def rows(payload: bytes) -> list[dict[str, Any]]:
    """The rows of an Arrow stream that TREAD answered."""
    result: list[dict[str, Any]] = pa.ipc.open_stream(payload).read_all().to_pylist()
    return result


class Client:
    """A session, and the replies it was sent after it had blocked. It stands for its own output."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.session = Session(engine, self)
        engine.sessions[self.session.id] = self.session
        self.replies: list[Any] = []

    def send(self, data: bytes) -> None:
        self.replies.append(decoded(data))

    def close(self, after_reply: bool) -> None:
        self.session.closing = True

    def resume(self) -> None:
        return

    def buffered(self) -> tuple[int, int]:
        return 0, 0

    @property
    def blocked(self) -> bool:
        return self.session.waiter is not None

    def run(self, *words: Word) -> Any:
        """The reply to a command; BLOCKED if it waits. One word with spaces is a whole command."""
        if len(words) == 1 and isinstance(words[0], str):
            words = tuple(words[0].split())
        argv = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        try:
            reply = self.engine.execute(self.session, argv)
        finally:
            self.engine.blocking.serve()
        return BLOCKED if reply is NO_REPLY else decoded(encode(reply, self.session.protocol))

    def error(self, *words: Word) -> str:
        """The error that a command must get, code word and all."""
        with pytest.raises(ReplyError) as caught:
            self.run(*words)
        return caught.value.wire().decode()

    def leave(self) -> None:
        """Disconnect."""
        self.engine.forget(self.session)


class Runs:
    """How often TREAD's handler ran from now on, and how often it found nothing for a client that it was woken for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.in_vain = 0
        command = REGISTRY.by_name[b"TREAD"]
        handler = command.handler

        def counting(session: Session, argv: Argv) -> Reply:
            woken = session.waiter is not None
            reply = handler(session, argv)
            self.count += 1
            self.in_vain += woken and reply is NO_REPLY
            return reply

        monkeypatch.setattr(command, "handler", counting)


class World:
    """An engine with its clock and its log; commands that no client is named for are the first client's."""

    def __init__(self, now: int = 1_700_000_000_000, files: Files | None = None) -> None:
        commands.load()
        self.clock = ManualClock(now)
        self.timers = ManualTimers(self.clock)
        self.engine = Engine(clock=self.clock, timers=self.timers)
        self.engine.keyspace.stream_storage.files = files
        self.logged: list[LogEntry] = []
        self.engine.log = self.logged.extend
        self.first_client = Client(self.engine)
        self.run = self.first_client.run
        self.error = self.first_client.error

    def client(self, *words: Word) -> Client:
        """A new client, blocked in the command if one is given."""
        client = Client(self.engine)
        if words:
            assert client.run(*words) == BLOCKED
        return client

    def write(self, key: Word, *entries: Word) -> int:
        """Append entries without a tag; the offset of the first."""
        pairs = [word for entry in entries for word in ("", entry)]
        return int(self.run("TWRITE", key, "ENTRIES", *pairs))

    def offsets(self, *words: Word) -> list[int]:
        """The offsets of what a TREAD answers."""
        return [message[0] for message in self.run(*words)]

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass, timers fire, and the server's periodic work happen once at the end."""
        self.timers.advance(milliseconds)
        self.engine.streams.tick()

    def stream(self, key: bytes = b"k") -> Stream:
        value = self.engine.keyspace[0].data[key]
        assert type(value) is Stream
        return value

    def group(self, name: bytes = b"g", key: bytes = b"k") -> dict[bytes, Any]:
        """What TGROUP LIST says of a group."""
        for pairs in self.run("TGROUP", "LIST", key):
            described = dict(zip(pairs[::2], pairs[1::2], strict=True))
            if described[b"name"] == name:
                return described
        raise LookupError(name)

    def restarted(self, base: Path | None = None, later: int = 10_000_000_000) -> World:
        """A world made from what this one logged, on top of a snapshot if one is given, a long time later."""
        world = World(self.clock.now + later, self.engine.keyspace.stream_storage.files)
        engine = world.engine
        engine.loading, engine.keyspace.expiring = True, False
        if base is not None:
            for _ in snapshot.load(base, engine.keyspace):
                pass
        session = Session.of_server(engine)
        for index, argv in self.logged:
            session.db = engine.keyspace[index]
            command = REGISTRY.find(argv)
            assert command is not None, argv
            engine.call(session, command, list(argv))
        engine.loading, engine.keyspace.expiring = False, True
        engine.streams.find_all()
        world.logged += self.logged
        return world


def lasting(group: dict[bytes, Any]) -> dict[bytes, Any]:
    """What is said of a group, but what changes with time or with a restart."""
    return {name: value for name, value in group.items() if name not in (b"lag-ms", b"dead-letters")}


def visible(world: World, key: bytes = b"k") -> dict[str, Any]:
    """All that clients can find out about a stream, but how it is stored."""
    if key not in world.engine.keyspace[0].data:
        return {}
    stream = world.stream(key)
    last = stream.messages.last
    pairs = world.run("TINFO", key)
    info = dict(zip(pairs[::2], pairs[1::2], strict=True))
    for storage in (b"bytes-stored", b"nodes-hot", b"nodes-cold", b"history"):
        del info[storage]
    info[b"groups"] = [lasting(dict(zip(group[::2], group[1::2], strict=True))) for group in info[b"groups"]]
    return {
        "info": info,
        "messages": world.run("TREAD", key, 1, last),
        "times": rows(world.run("TREAD", key, 1, last, "FORMAT", "ARROW")),
        "pending": {name: world.run("TGROUP", "PENDING", key, name) for name in stream.groups},
        "dead letters": {name: [lease.dead_letter for lease in group.leases] for name, group in stream.groups.items()},
        "producers": list(stream.producers.dump()),
        "stages": list(stream.stages.dump()),
    }
