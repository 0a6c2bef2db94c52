"""Samples the figures of all streams that one user sees: TINFO of one after the other.

The list of streams is served from here, so a page of ten thousand streams costs the server nothing. In turn the
figures are as old as a round. A round is slow enough that it costs the server about half a percent of its time: after
each piece of work the sampler rests 200 times as long as the piece took. New streams are
taken at once, and streams on an open page every two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.console.errors import Problem, Refused
from penstock.console.history import SERVER, History, Series, Values
from penstock.console.info import parse_info
from penstock.console.login import Login
from penstock.console.same_server import recognize

logger = logging.getLogger("penstock.console")

EVERY = 2.0
IDLE_EVERY = 10.0
RESTS = 200
PIECE = 50
RENEWING = 20.0
"""Seconds until the sampler looks for new streams again."""
HIDDEN, LONGEST_HIDDEN = 60.0, 3600.0
"""Seconds for which a stream that the user may not read is not asked for: after each refusal twice as long."""
FORGET_AFTER = 60.0
"""Seconds without a page after which figures are taken less often."""


@dataclass(slots=True)
class GroupSample:
    name: bytes
    position: int
    lag: int
    behind: int
    """Milliseconds since the next message of the group was written."""
    pending: int
    lost: int
    rate: float = 0.0


@dataclass(slots=True)
class StreamSample:
    """TINFO at a time; rates are since the sample before."""

    key: bytes
    taken: float
    """Seconds since 1970, for the graph."""
    taken_at: float
    """By the monotonic clock: ages and rates are right also when the other clock is set."""
    first: int
    last: int
    length: int
    size: int
    groups: list[GroupSample] = field(default_factory=list)
    rate: float = 0.0

    @property
    def lag(self) -> int:
        return max((group.lag for group in self.groups), default=0)

    @property
    def behind(self) -> int:
        """Milliseconds."""
        return max((group.behind for group in self.groups), default=0)

    @property
    def pending(self) -> int:
        return sum(group.pending for group in self.groups)


class Sampler:
    """Takes samples of all streams for as long as its task runs; `streams` is replaced piece by piece."""

    def __init__(self, login: Login, history: History) -> None:
        self.login = login
        self.streams: dict[bytes, StreamSample] = {}
        self.total: int | None = None
        """Streams in the last round; None before the end of the first."""
        self.problem: Problem | None = None
        """Why the last attempt failed."""
        self.looked_at = time.monotonic()
        self._history = history
        self._server = history.server
        self._task: asyncio.Task[None] | None = None
        self._progress = asyncio.Event()
        self._server_due = 0.0
        self._hidden: dict[bytes, tuple[float, float]] = {}
        """Streams that the user may not read, until when they are not asked for, and how long that is: a refusal is a
        line in ACL LOG."""

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def stop_soon(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        self.stop_soon()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def wait_for_round(self, seconds: float) -> None:
        """Wait for the end of the first round, for a little while."""
        until = time.monotonic() + seconds
        while self.total is None and self.problem is None and (left := until - time.monotonic()) > 0:
            self._progress.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._progress.wait(), left)

    async def refresh(self, keys: Iterable[bytes]) -> None:
        """Take new samples of a few streams, those that are on a page."""
        now = time.monotonic()
        old = [key for key in keys if key not in self.streams or now - self.streams[key].taken_at >= EVERY * 0.9]
        if old:
            await self._take(old)

    async def _run(self) -> None:
        while True:
            try:
                await self._round()
                self.problem = None
            except Problem as problem:
                self.problem = problem
            except Exception:  # a bug of ours, or a server of another version: the next round may succeed
                logger.exception("the figures of the streams could not be taken")
                self.problem = Problem("The figures of the streams could not be taken; see the log of the console.")
            self._progress.set()
            await asyncio.sleep(EVERY if time.monotonic() - self.looked_at < FORGET_AFTER else IDLE_EVERY)

    async def _round(self) -> None:
        await self._look_for_new()
        await self._renew(time.monotonic() + RENEWING)

    async def _look_for_new(self) -> None:
        """Find all names; take samples of those that are new."""
        seen: set[bytes] = set()
        cursor = b"0"
        while True:
            await self._take_server()
            began = time.monotonic()
            cursor, keys = await self.login.call("SCAN", cursor, "TYPE", "tstream", "COUNT", 500)
            spent = time.monotonic() - began
            new = [key for key in keys if key not in seen and key not in self.streams and not self._is_hidden(key)]
            seen.update(keys)
            for at in range(0, len(new), PIECE):
                await asyncio.sleep(await self._take(new[at : at + PIECE]))
                self._progress.set()
            if not int(cursor):
                break
            await asyncio.sleep(spent if self.total is None else spent * RESTS)
        for key in set(self.streams) - seen:
            del self.streams[key]
        self._hidden = {key: hidden for key, hidden in self._hidden.items() if key in seen}
        self.total = len(self.streams)

    def _is_hidden(self, key: bytes) -> bool:
        until, _ = self._hidden.get(key, (0.0, 0.0))
        return until > time.monotonic()

    async def _renew(self, until: float) -> None:
        """Take new samples, the oldest first, for a while."""
        now = time.monotonic()
        ages = ((sample.taken_at, key) for key, sample in self.streams.items())
        old = sorted((taken, key) for taken, key in ages if now - taken >= EVERY * 0.9)
        for at in range(0, len(old), PIECE):
            spent = await self._take([key for _, key in old[at : at + PIECE]])
            await self._take_server()
            if at + PIECE < len(old):
                await asyncio.sleep(spent * RESTS)
            if time.monotonic() > until:
                return

    async def _take_server(self) -> None:
        if time.monotonic() < self._server_due:
            return
        self._server_due = time.monotonic() + IDLE_EVERY
        info = (await self.login.find_all([("INFO", "stats", "memory", "clients", "replication")]))[0]
        if info is not None:
            await recognize(self.login, self._history, info)
            found = parse_info(info)
            values = (
                float(found.get("total_commands_processed", 0)),
                float(found.get("used_memory", 0)),
                float(found.get("connected_clients", 0)),
            )
            await self._history.record(time.time(), [(SERVER, values)])

    async def _take(self, keys: list[bytes]) -> float:
        """Sample streams; the seconds that the server took."""
        began = time.monotonic()
        server, *replies = await self.login.call_all([("INFO", "replication"), *(("TINFO", key) for key in keys)])
        spent = time.monotonic() - began
        if not isinstance(server, Problem):
            await recognize(self.login, self._history, server)
        if self._history.server != self._server:
            self._server = self._history.server
            self.streams.clear()  # of another server: a rate between the two would be nonsense
        now = time.time()
        points: list[tuple[Series, Values]] = []
        for key, reply in zip(keys, replies, strict=True):
            if isinstance(reply, Problem):
                self.streams.pop(key, None)  # deleted since, or not this user's
                if isinstance(reply, Refused):
                    _, before = self._hidden.get(key, (0.0, HIDDEN / 2))
                    wait = min(2 * before, LONGEST_HIDDEN)
                    self._hidden[key] = began + wait, wait
                continue
            self._hidden.pop(key, None)
            sample = _sample(key, reply, now, self.streams.get(key))
            self.streams[key] = sample
            points.append(((key, b""), (float(sample.last), float(sample.size), float(sample.length))))
            points += [
                ((key, group.name), (group.position, group.lag, group.pending, group.behind)) for group in sample.groups
            ]
        await self._history.record(now, points)
        return spent


def _sample(key: bytes, info: dict[bytes, Any], now: float, before: StreamSample | None) -> StreamSample:
    at = time.monotonic()
    sample = StreamSample(
        key, now, at, info[b"first"], info[b"last"], info[b"length"], info[b"bytes-stored"] + info[b"history"][b"bytes"]
    )
    known = {group.name: group for group in before.groups} if before else {}
    seconds = max(at - before.taken_at, 0.001) if before else 0.0
    if before is not None:
        sample.rate = max(sample.last - before.last, 0) / seconds
    for row in info[b"groups"]:
        group = GroupSample(row[b"name"], row[b"position"], row[b"lag"], row[b"lag-ms"], row[b"pending"], row[b"lost"])
        if (earlier := known.get(group.name)) is not None:
            group.rate = max(group.position - earlier.position, 0) / seconds
        sample.groups.append(group)
    return sample


class Samplers:
    """The samplers of all users. The console's own runs always, that of another user while a page of it is open."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._samplers: dict[str, Sampler] = {}
        self._own: Login | None = None

    def of(self, login: Login) -> Sampler:
        """The sampler of a user; one begins if there is none."""
        now = time.monotonic()
        sampler = self._samplers.get(login.user)
        if sampler is not None and sampler.login.is_over and not login.is_over:
            sampler.stop_soon()  # the session that it belonged to has ended
            sampler = None
        if sampler is None:
            sampler = self._samplers[login.user] = Sampler(login, self._history)
            sampler.start()
        sampler.looked_at = now
        return sampler

    def keep(self, login: Login) -> None:
        """The console's own."""
        self._own = login
        self.of(login)

    async def keep_no_more(self) -> None:
        """The server no longer takes the console's own login."""
        if self._own is not None:
            await self.leave(self._own)
        self._own = None

    async def tidy(self) -> None:
        """Stop those that no page uses. The console's own goes on with its own login when a session has ended."""
        own = self._own
        if own is not None and ((sampler := self._samplers.get(own.user)) is None or sampler.login.is_over):
            self.of(own)
        for user, sampler in list(self._samplers.items()):
            if (own is None or user != own.user) and time.monotonic() - sampler.looked_at > FORGET_AFTER:
                del self._samplers[user]
                await sampler.stop()

    async def leave(self, login: Login) -> None:
        """A session ends: another one of this user goes on with a sampler of its own."""
        sampler = self._samplers.get(login.user)
        if sampler is not None and sampler.login is login:
            del self._samplers[login.user]
            await sampler.stop()

    async def close(self) -> None:
        for sampler in self._samplers.values():
            await sampler.stop()
