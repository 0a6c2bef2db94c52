"""Messages that are fetched and not begun: in one queue, or in a lane for each tag.

A message that was attempted before is begun alone. If it kills its process, no other message counts an attempt for
that; so the server gives up the message that fails, and not its neighbours.

Lanes keep the order of a tag: a lane gives out messages only while none of its messages is being processed, and a
message that failed stays at the head of its lane until it succeeds or is given up.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from penstock.client.consumer.delivered import Row


class Queue(ABC):
    """The queue from which the workers of a consumer take messages."""

    @abstractmethod
    def __len__(self) -> int:
        """How many messages wait."""

    @abstractmethod
    def ready(self) -> int:
        """How many messages could be taken now, at the least."""

    @abstractmethod
    def add(self, messages: list[Row]) -> None:
        """Append what was fetched."""

    @abstractmethod
    def take(self, most: int, now: float) -> list[Row]:
        """The next messages to begin together; none if none may begin now."""

    @abstractmethod
    def finish(self, share: Sequence[Row]) -> None:
        """Note that a share was processed."""

    @abstractmethod
    def retry(self, message: Row, at: float) -> bool:
        """Keep a message that failed until a time; False if it should be given back instead. Of several that were
        taken together, the last comes first.
        """

    @abstractmethod
    def put_back(self, messages: Sequence[Row]) -> bool:
        """Keep messages that were taken and not processed; False if they should be given back instead."""

    @abstractmethod
    def next_at(self) -> float | None:
        """When a message that waits for a retry may be taken; None if none waits for a time."""

    @abstractmethod
    def following(self, now: float) -> Row | None:
        """The message that is taken next; None if none may be taken now."""

    @abstractmethod
    def remove_tags(self, tags: set[Any]) -> list[Row]:
        """Take out the messages of some tags, if the queue keeps their order."""

    @abstractmethod
    def remove_waiting(self) -> list[Row]:
        """Take out what may be given back although the consumer goes on."""

    @abstractmethod
    def clear(self) -> list[Row]:
        """Take out everything."""


def _was_attempted(row: Row) -> bool:
    return bool(row[4])


def _alone_or_together(waiting: deque[Row], most: int) -> list[Row]:
    share = [waiting.popleft()]
    if not _was_attempted(share[0]):
        while len(share) < most and waiting and not _was_attempted(waiting[0]):
            share.append(waiting.popleft())
    return share


class PlainQueue(Queue):
    """First in, first out. What fails goes back to the server. Its items are runs of messages that may be begun
    together.
    """

    def __init__(self) -> None:
        self._runs: deque[list[Row]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def ready(self) -> int:
        return self._count

    def add(self, messages: list[Row]) -> None:
        self._count += len(messages)
        if any(map(_was_attempted, messages)):
            for was_attempted, run in groupby(messages, _was_attempted):
                together = list(run)
                self._runs.extend([[message] for message in together] if was_attempted else [together])
        elif messages:
            self._runs.append(messages)

    def take(self, most: int, now: float) -> list[Row]:
        if not self._runs:
            return []
        run = self._runs.popleft()
        while self._runs and len(run) < most and not (_was_attempted(run[0]) or _was_attempted(self._runs[0][0])):
            run += self._runs.popleft()
        if len(run) > most:
            run, rest = run[:most], run[most:]
            self._runs.appendleft(rest)
        self._count -= len(run)
        return run

    def finish(self, share: Sequence[Row]) -> None: ...

    def retry(self, message: Row, at: float) -> bool:
        return False

    def put_back(self, messages: Sequence[Row]) -> bool:
        return False

    def next_at(self) -> float | None:
        return None

    def following(self, now: float) -> Row | None:
        return self._runs[0][0] if self._runs else None

    def remove_tags(self, tags: set[Any]) -> list[Row]:
        return []

    def remove_waiting(self) -> list[Row]:
        return self.clear()

    def clear(self) -> list[Row]:
        found = [message for run in self._runs for message in run]
        self._runs.clear()
        self._count = 0
        return found


class Lanes(Queue):
    """A lane for each tag."""

    def __init__(self) -> None:
        self._lanes: dict[Any, deque[Row]] = {}  # with those whose messages are being processed
        self._ready: deque[Any] = deque()  # tags whose first message may be taken
        self._delayed: list[tuple[float, int, Any]] = []  # a heap of times, offsets and tags
        self._failed: set[Any] = set()  # the tags in it
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def ready(self) -> int:
        return len(self._ready)

    def add(self, messages: list[Row]) -> None:
        for message in messages:
            tag = message[1]
            lane = self._lanes.get(tag)
            if lane is None:
                lane = self._lanes[tag] = deque()
                self._ready.append(tag)
            lane.append(message)
            self._count += 1

    def take(self, most: int, now: float) -> list[Row]:
        self._end_delays(now)
        while self._ready:
            tag = self._ready.popleft()
            if self._lanes[tag]:
                share = _alone_or_together(self._lanes[tag], most)
                self._count -= len(share)
                return share
            del self._lanes[tag]  # its messages were removed
        return []

    def _end_delays(self, now: float) -> None:
        while self._delayed and self._delayed[0][0] <= now:
            _, _, tag = heapq.heappop(self._delayed)
            self._failed.discard(tag)
            self._ready.append(tag)

    def finish(self, share: Sequence[Row]) -> None:
        tag = share[0][1]
        if tag in self._failed:
            return  # its first message waits for a retry
        if self._lanes[tag]:
            self._ready.append(tag)
        else:
            del self._lanes[tag]

    def retry(self, message: Row, at: float) -> bool:
        offset, tag = message[:2]
        self._lanes[tag].appendleft(message)
        self._count += 1
        if tag not in self._failed:
            heapq.heappush(self._delayed, (at, offset, tag))
            self._failed.add(tag)
        return True

    def put_back(self, messages: Sequence[Row]) -> bool:
        self._lanes[messages[0][1]].extendleft(reversed(messages))
        self._count += len(messages)
        return True

    def next_at(self) -> float | None:
        return self._delayed[0][0] if self._delayed else None

    def following(self, now: float) -> Row | None:
        self._end_delays(now)
        return next((self._lanes[tag][0] for tag in self._ready if self._lanes[tag]), None)

    def remove_tags(self, tags: set[Any]) -> list[Row]:
        found = [message for tag in tags for message in self._lanes.get(tag, ())]
        for tag in tags & self._lanes.keys():
            self._lanes[tag].clear()
        self._count -= len(found)
        return found

    def remove_waiting(self) -> list[Row]:
        return []  # another member would process it while its predecessor is being processed here

    def clear(self) -> list[Row]:
        found = [message for lane in self._lanes.values() for message in lane]
        self._lanes.clear()
        self._ready.clear()
        self._delayed.clear()
        self._count = 0
        return sorted(found, key=itemgetter(0))
