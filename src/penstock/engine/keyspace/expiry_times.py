"""When keys fall due: for active expiry, which deletes keys that no command asks for any more.

Keys that fall due within the same 128 ms share a bucket, and a heap orders the buckets. Taking a key's deadline away is
then O(1) and exact: however often keys are given new times, no stale row is left behind. A bucket is taken only when
all of it has passed, so nothing in it needs a second look; active expiry is up to 128 ms late, which no client can
tell, because a key past its time is deleted when it is looked at.

Invariant: a key is in the bucket of its one deadline, and no bucket is empty.

Rejected: a heap of (time, key). Every new time for a key leaves a stale row, and getting rid of them stalls the server
for as long as it takes to rebuild a heap of a million rows.
"""

from __future__ import annotations

from collections.abc import Sized
from heapq import heapify, heappop, heappush

WIDTH_BITS = 7
SPARE = 1024
"""Numbers of vanished buckets the heap may hold beyond one for each bucket, before they are swept out."""


class Deadlines:
    """Keys by when they fall due, in milliseconds. Owned by the loop thread."""

    __slots__ = ("_buckets", "_order")

    def __init__(self) -> None:
        # A bucket of one is the bare key: far-away deadlines are mostly alone, and a dict would take 200 bytes each.
        self._buckets: dict[int, bytes | dict[bytes, None]] = {}
        self._order: list[int] = []  # a heap of bucket numbers; those of vanished buckets are passed over

    def add(self, key: bytes, when: int) -> None:
        """O(1), O(log buckets) when it opens a bucket. The key must not have a deadline yet."""
        buckets = self._buckets
        number = when >> WIDTH_BITS
        bucket = buckets.get(number)
        if bucket is None:
            buckets[number] = key
            heappush(self._order, number)
            if len(self._order) > 2 * len(buckets) + SPARE:
                self._order = list(buckets)
                heapify(self._order)
        elif isinstance(bucket, dict):
            bucket[key] = None
        else:
            buckets[number] = {bucket: None, key: None}

    def remove(self, key: bytes, when: int) -> None:
        """O(1). Does nothing if the key was taken already."""
        number = when >> WIDTH_BITS
        bucket = self._buckets.get(number)
        if isinstance(bucket, dict):
            bucket.pop(key, None)
            if not bucket:
                del self._buckets[number]
        elif bucket == key:
            del self._buckets[number]

    def take(self, now: int) -> bytes | None:
        """Remove and return a key whose time has come, None if there is none."""
        order = self._order
        current = now >> WIDTH_BITS
        while order and order[0] < current:
            bucket = self._buckets.get(order[0])
            if isinstance(bucket, dict):
                key, _ = bucket.popitem()
                if not bucket:
                    del self._buckets[heappop(order)]
                return key
            number = heappop(order)
            if bucket is not None:
                del self._buckets[number]
                return bucket
        return None

    def parts(self) -> tuple[Sized, ...]:
        """What grows with the number of keys, for the thread that takes it apart."""
        return self._buckets, self._order

    def check(self, expires: dict[bytes, int]) -> None:
        """Assert every invariant, given what the deadlines should be; for tests."""
        found: dict[bytes, int] = {}
        for number, bucket in self._buckets.items():
            keys = list(bucket) if isinstance(bucket, dict) else [bucket]
            assert keys, number
            found |= dict.fromkeys(keys, number)
        assert found == {key: when >> WIDTH_BITS for key, when in expires.items()}, (found, expires)
        assert set(self._order) >= set(self._buckets), (self._order, self._buckets)
        assert all(self._order[(at - 1) // 2] <= self._order[at] for at in range(1, len(self._order))), self._order
