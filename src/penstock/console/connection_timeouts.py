"""Closes stalled connections: no whole request for some seconds, or an answer that is not read.

uvicorn waits for ever for the first request of a connection, for the rest of one that has begun, and for a browser that
does not read. It answers 503 when too many connections are open, so a few hundred such would keep all browsers out.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""So long a browser may take nothing of an answer that waits for it."""


class TimeoutProtocol(H11Protocol):
    """The protocol of uvicorn with time limits for the head of a request and for the taking of an answer."""

    _limit: asyncio.TimerHandle | None = None
    _answer_limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limit = self.loop.call_later(REQUEST_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._limit is None and not self._is_answering():
            self._limit = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)
        super().data_received(data)
        if self._is_answering():
            self._stop_limit()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer_limit = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_answer_limit()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_limit()
        self._stop_answer_limit()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _stop_answer_limit(self) -> None:
        if self._answer_limit is not None:
            self._answer_limit.cancel()
            self._answer_limit = None
