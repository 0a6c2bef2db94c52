"""A TCP proxy that breaks a connection exactly where it hurts: the question a client must answer is what it does then.

    with FaultProxy(("127.0.0.1", 6379)) as proxy:
        fault = proxy.cut_after_execution(command=b"INCRBY", nth=1)
        client = redis.Redis(port=proxy.port)
        client.incr("n")                  # the server counted; the client never hears of it
        assert fault.has_fired and proxy.forwarded[b"INCRBY"] == 2  # ... and so redis-py counts twice

A fault is armed beforehand and fires once, at the nth request with that name (any request, without a name) counted from
the moment of arming over all connections. Whatever was asked before it on the same connection is answered first, so a
test knows what the client has seen. One thread of its own runs all connections; the faults are shared with the caller's
threads under a lock. One request is taken to have one reply, so subscriptions over RESP2 pass but cannot be aimed at.

Rejected: cutting after so many bytes or milliseconds of a connection. Such a test hits another place with every change
of the client, and tells nothing when it passes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType

from penstock.testing.frames import command_name, frame_end

_PUSH = ord(">")  # data out of band: no request asked for it


class Kind(Enum):
    """What a fault does to its request."""

    CUT_BEFORE_FORWARDING = "the server never sees it"
    CUT_MID_REQUEST = "the server gets only its first bytes"
    CUT_AFTER_EXECUTION = "the server ran it, the client hears nothing"
    CUT_MID_REPLY = "the client gets only the first bytes of the reply"
    DELAY = "the reply comes late"
    REPLACE = "the client gets other bytes instead of the reply"
    SWALLOW = "nothing passes any more in either direction, and the connection stays open"


@dataclass(slots=True, eq=False)
class Fault:
    """One planned fault, and whether it has fired."""

    kind: Kind
    command: bytes | None
    nth: int
    after_bytes: int = 0
    seconds: float = 0.0
    instead: bytes = b""
    first_withheld: int = 0  # CUT_AFTER_EXECUTION: from which matching request on replies are kept back
    executed: bool = False  # SWALLOW: whether the server gets the request
    seen: int = 0
    _fired: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def has_fired(self) -> bool:
        return self._fired.is_set()

    def fire(self) -> None:
        self._fired.set()

    def wait(self, seconds: float = 60) -> bool:
        """Wait until it fires; False if it did not."""
        return self._fired.wait(seconds)


@dataclass(slots=True, eq=False)
class _Request:
    """A request that was forwarded and waits for its reply."""

    command: bytes
    fault: Fault | None
    ordinal: int = 0  # which of the fault's matching requests it is


class FaultProxy:
    """Listens on 127.0.0.1 at a port of its own and passes everything to `target`, until a fault fires."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.port = 0
        self.connections = 0  # accepted so far
        self.refused = 0  # closed as soon as they came, because it refuses them or the server is away
        self.forwarded: Counter[bytes] = Counter()  # requests the server got whole, by name
        self.answered: Counter[bytes] = Counter()  # replies the client was sent whole, by the name of the request
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._refusing = False
        self.bytes_per_second = 0.0  # of requests, on each connection; 0 is no limit
        self._held: list[tuple[_PairedConnections, bytes, bytes | None]] | None = (
            None  # replies that are kept back, and for what command
        )
        self._pairs: set[_PairedConnections] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="penstock-fault-proxy", daemon=True)
        self._listening = threading.Event()
        self._stopping = asyncio.Event()

    # -- what can go wrong --------------------------------------------------------------------------------------

    def cut_before_forwarding(self, command: bytes | None = None, nth: int = 1) -> Fault:
        """Cut both sides instead of forwarding the request."""
        return self._arm(Fault(Kind.CUT_BEFORE_FORWARDING, command, nth))

    def cut_mid_request(self, after_bytes: int, command: bytes | None = None, nth: int = 1) -> Fault:
        """Forward the first bytes of the request, then cut both sides."""
        return self._arm(Fault(Kind.CUT_MID_REQUEST, command, nth, after_bytes=after_bytes))

    def cut_after_execution(self, command: bytes | None = None, nth: int = 1, replies: int | None = None) -> Fault:
        """Cut when the server has answered the request and the client has not got the reply.

        Of the matching requests before it, the client gets the first `replies` replies (all of them by default): with
        nth=100 and replies=50 a hundred are executed and fifty answered.
        """
        withheld = nth if replies is None else replies + 1
        if not 1 <= withheld <= nth:
            raise ValueError(f"replies must be between 0 and {nth - 1}, not {replies}")
        return self._arm(Fault(Kind.CUT_AFTER_EXECUTION, command, nth, first_withheld=withheld))

    def cut_mid_reply(self, after_bytes: int, command: bytes | None = None, nth: int = 1) -> Fault:
        """Send the client the first bytes of the reply, then cut both sides."""
        return self._arm(Fault(Kind.CUT_MID_REPLY, command, nth, after_bytes=after_bytes))

    def delay(self, seconds: float, command: bytes | None = None, nth: int = 1) -> Fault:
        """Hold the reply, and with it those that follow on the connection."""
        return self._arm(Fault(Kind.DELAY, command, nth, seconds=seconds))

    def replace_reply(self, instead: bytes, command: bytes | None = None, nth: int = 1) -> Fault:
        """Send these bytes in place of the reply."""
        return self._arm(Fault(Kind.REPLACE, command, nth, instead=instead))

    def swallow(self, command: bytes | None = None, nth: int = 1, executed: bool = False) -> Fault:
        """A half-open connection: from this request on nothing passes, and neither end is told."""
        return self._arm(Fault(Kind.SWALLOW, command, nth, executed=executed))

    def hold_replies(self) -> None:
        """Hold all replies back, on all connections, until `release_replies`. A connection that is cut loses them."""
        self._held = []

    def release_replies(self) -> None:
        """Send the replies that were held back, and hold back no more."""
        asyncio.run_coroutine_threadsafe(self._release(), self._loop).result(60)

    @property
    def is_holding(self) -> bool:
        """Whether a reply is held back."""
        return bool(self._held)

    def slow_down(self, bytes_per_second: float) -> None:
        """From now on take no more than so many bytes of requests in a second, on each connection."""
        self.bytes_per_second = bytes_per_second

    def cut_connections(self) -> None:
        """Cut every connection; when this returns, both sides can see it."""
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result(60)

    def refuse_connections(self) -> None:
        """Close new connections as soon as they come, until `accept_connections`."""
        self._refusing = True

    def accept_connections(self) -> None:
        self._refusing = False

    def clear(self) -> None:
        """Disarm all faults and start the counters again; connections stay as they are."""
        with self._lock:
            self._faults.clear()
        self._refusing = False
        self.bytes_per_second = 0.0
        if self._held is not None:
            self.release_replies()
        self.connections = self.refused = 0
        self.forwarded.clear()
        self.answered.clear()

    # -- from start to stop -------------------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> FaultProxy:
        self._thread.start()
        self._listening.wait(60)
        return self

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(60)

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- on the proxy's own thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stopping.wait()
        server.close()
        while self._pairs:
            await self._end_all()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            self.refused += 1
            writer.close()
            return
        self.connections += 1
        try:
            upstream = await asyncio.open_connection(*self.target)
        except OSError:
            self.refused += 1
            writer.close()
            return
        if self._refusing:  # since it was accepted
            self.refused += 1
            writer.close()
            upstream[1].close()
            return
        pair = _PairedConnections(self, (reader, writer), upstream)
        self._pairs.add(pair)
        try:
            await pair.run()
        finally:
            self._pairs.discard(pair)

    async def _end_all(self) -> None:
        await asyncio.gather(*[pair.end() for pair in self._pairs])
        await asyncio.sleep(0)  # their tasks end, too

    async def _release(self) -> None:
        held, self._held = self._held or [], None
        for pair, data, command in held:
            if pair in self._pairs:
                pair.deliver(data, command)

    def keep_back(self, pair: _PairedConnections, data: bytes, command: bytes | None) -> bool:
        """Whether replies are held, and so is this one now."""
        if (held := self._held) is None:
            return False
        held.append((pair, data, command))
        return True

    # -- faults -------------------------------------------------------------------------------------------------

    def _arm(self, fault: Fault) -> Fault:
        if fault.nth < 1:
            raise ValueError(f"nth must be at least 1, not {fault.nth}")
        if fault.command is not None:
            fault.command = fault.command.upper()
        with self._lock:
            self._faults.append(fault)
        return fault

    def request(self, command: bytes) -> _Request:
        """Count the request against every armed fault; the one whose turn it is hits it.

        If two faults are due, the second hits the next request.
        """
        with self._lock:
            for fault in self._faults:
                if fault.command is None or fault.command == command:
                    fault.seen += 1
            for fault in self._faults:
                if fault.command is None or fault.command == command:
                    if fault.seen >= fault.nth:
                        self._faults.remove(fault)
                        return _Request(command, fault, fault.seen)
                    if 0 < fault.first_withheld <= fault.seen:
                        return _Request(command, fault, fault.seen)
        return _Request(command, None)


class _PairedConnections:
    """One connection of a client and the one to the server behind it."""

    def __init__(
        self,
        proxy: FaultProxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._waiting: deque[_Request] = deque()
        self._all_answered = asyncio.Event()  # nothing that was forwarded waits for its reply
        self._all_answered.set()
        self._silent = False  # swallowed: read and forget
        self._withholding = False  # replies are kept back, a cut is coming

    async def run(self) -> None:
        both = [asyncio.create_task(self._forward()), asyncio.create_task(self._answer())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.cut()
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    def cut(self) -> None:
        self._to_client.close()  # what was written to it still goes out
        self._to_server.close()

    async def end(self) -> None:
        """Cut it and wait until its sockets are closed, which the loop does only in its next round."""
        for stream in (self._to_client, self._to_server):
            stream.transport.abort()
            with contextlib.suppress(OSError):  # how it was lost
                await stream.wait_closed()

    async def _forward(self) -> None:
        """Requests, until one side ends or a fault says so."""
        buffer = bytearray()
        now, due = asyncio.get_running_loop().time, 0.0
        while data := await _read(self._from_client):
            buffer += data
            start = 0
            while start < len(buffer) and (end := frame_end(buffer, start)) > 0:
                frame = bytes(buffer[start:end])
                start = end
                if not self._silent and not await self._forward_one(frame, self._proxy.request(command_name(frame))):
                    return
            del buffer[:start]
            await self._to_server.drain()
            if self._proxy.bytes_per_second:
                due = max(due, now() - 1) + len(data) / self._proxy.bytes_per_second
                await asyncio.sleep(max(due - now(), 0))

    async def _forward_one(self, frame: bytes, request: _Request) -> bool:
        """Whether the connection continues."""
        fault = request.fault
        kind = fault.kind if fault is not None else None
        if fault is not None and kind in (Kind.CUT_BEFORE_FORWARDING, Kind.CUT_MID_REQUEST):
            await self._all_answered.wait()
            fault.fire()
            self._to_server.write(frame[: fault.after_bytes])
            return False
        if fault is not None and kind is Kind.SWALLOW and not fault.executed:
            await self._all_answered.wait()
            self._silent = True
            fault.fire()
            return True
        self._waiting.append(request)
        self._all_answered.clear()
        self._to_server.write(frame)
        self._proxy.forwarded[request.command] += 1
        return True

    async def _answer(self) -> None:
        """Replies, until one side ends or a fault says so."""
        buffer = bytearray()
        while data := await _read(self._from_server):
            buffer += data
            start = 0
            while start < len(buffer) and (end := frame_end(buffer, start)) > 0:
                frame = bytes(buffer[start:end])
                start = end
                if frame[0] == _PUSH or not self._waiting:
                    self.deliver(frame)
                elif not await self._answer_one(frame, self._waiting.popleft()):
                    return
            del buffer[:start]
            await self._to_client.drain()

    async def _answer_one(self, frame: bytes, request: _Request) -> bool:
        """Whether the connection continues."""
        fault = request.fault
        if not self._waiting:
            self._all_answered.set()
        if fault is None:
            self.deliver(frame, request.command)
            return True
        match fault.kind:
            case Kind.CUT_AFTER_EXECUTION:
                self._withholding = True
                if request.ordinal < fault.nth:
                    return True
                fault.fire()
                return False
            case Kind.CUT_MID_REPLY:
                fault.fire()
                self.deliver(frame[: fault.after_bytes])
                return False
            case Kind.DELAY:
                fault.fire()
                await asyncio.sleep(fault.seconds)
                self.deliver(frame, request.command)
            case Kind.REPLACE:
                fault.fire()
                self.deliver(fault.instead)
            case Kind.SWALLOW:
                self._silent = True
                fault.fire()
        return True

    def deliver(self, data: bytes, command: bytes | None = None) -> None:
        """Send it to the client, counted as the reply to `command` before the client can see it."""
        if not self._silent and not self._withholding and not self._proxy.keep_back(self, data, command):
            if command is not None:
                self._proxy.answered[command] += 1
            self._to_client.write(data)


async def _read(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.read(1 << 16)
    except OSError:  # a reset is an ordinary end
        return b""
