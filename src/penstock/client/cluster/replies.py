"""Bytes to the replies of one batch, on a connection that has nothing else under way.

hiredis does it, but for one case. When a node has lost all its slots, as after a failover, it answers a pipeline with
thousands of lines that say the same, MOVED to one place; a search finds that out for a whole read at once, and one
object stands for all of them.

The short way is taken from the beginning of a batch up to the first byte that is something else; from there to the end
of the batch all goes through hiredis. So it does not matter whether hiredis is in the middle of an array, which it does
not tell.

Rejected: an object for each line, made by hiredis. Ten thousand cost as much as sending the commands again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import hiredis
import redis

from penstock.client.cluster.driver_requests import NodeBatch
from penstock.client.cluster.errors import Moved, decode_error
from penstock.client.delivery import State

_MORE: Final = object()
_MOVED = b"-MOVED "


class NodeReplyReader:
    """The reading side of a connection."""

    __slots__ = ("_has_only_moved", "_reader", "_tail")

    def __init__(self, encoder: Any) -> None:
        arguments: dict[str, Any] = {"encoding": encoder.encoding} if encoder.decode_responses else {}
        self._reader: Any = hiredis.Reader(
            protocolError=redis.InvalidResponse, replyError=cast("Callable[[str], Exception]", decode_error),
            errors=encoder.encoding_errors, notEnoughData=_MORE, **arguments,
        )  # fmt: skip
        self._has_only_moved = True  # all that came of this batch
        self._tail = b""  # and the line that was cut off at its end

    def take(self, data: Any, into: list[Any], batch: NodeBatch) -> None:
        """Add all replies that `data` makes whole; pushes are passed over."""
        wanted = len(batch.pieces)
        if self._has_only_moved and (data := self._take_moved(data, into)):
            self._has_only_moved = False
        if not self._has_only_moved:
            self._reader.feed(data)
            self._take_rest(into, wanted, batch.raw)
            self._has_only_moved = len(into) == wanted  # the next batch may begin as it likes
        if len(into) > wanted:
            raise redis.InvalidResponse(f"a reply to no command: {into.pop()!r}")

    def is_only_push(self, data: Any) -> bool:
        """Whether what came while nothing was asked for is harmless."""
        self._reader.feed(data)
        return self._reader.gets().__class__ is hiredis.PushNotification

    def _take_moved(self, more: Any, into: list[Any]) -> bytes:
        """Take whole lines of MOVED to one place, if there is nothing else; what is for hiredis otherwise."""
        data: bytes = self._tail + more
        self._tail = b""
        lines = data.count(b"\r\n")
        if not lines or not data.startswith(_MOVED):
            return data
        place = data[: data.index(b"\r\n")].rpartition(b" ")[2]
        end = data.rindex(b"\r\n") + 2
        if data.count(b" %b\r\n" % place) < lines or data.count(b"\r\n" + _MOVED, 0, end) < lines - 1:
            return data
        into.extend([Moved(place.decode("utf-8", "replace"))] * lines)
        self._tail = data[end:]
        return b""

    def _take_rest(self, into: list[Any], wanted: int, raw: frozenset[int]) -> None:
        """All whole replies that hiredis holds. One that cannot be decoded is the loss of its command alone."""
        reader = self._reader
        while (known := len(into)) < wanted:
            try:
                into.extend(self._one(known not in raw) if raw else iter(reader.gets, _MORE))
            except redis.InvalidResponse:
                raise
            except Exception as error:
                error.state = State.REPLIED  # type: ignore[attr-defined]
                into.append(error)
                continue
            if len(into) == known:
                return
            if hiredis.PushNotification in set(map(type, into[known:])):
                into[known:] = [reply for reply in into[known:] if reply.__class__ is not hiredis.PushNotification]

    def _one(self, decoded: bool) -> list[Any]:
        reply = self._reader.gets(decoded)
        return [] if reply is _MORE else [reply]
