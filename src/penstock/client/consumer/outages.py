"""How a consumer lives through a server that does not answer: which errors may pass, how long to pause, what to log.

One outage is logged twice: when it begins, and when it is over. All workers of a consumer share an Outages, so eight
workers do not log the same outage eight times.
"""

from __future__ import annotations

import logging

import redis

from penstock.client.delivery import State
from penstock.client.engine.refused_by_replica import verdict
from penstock.client.errors import ClientClosed, NotSent
from penstock.protocol import errors as protocol_errors

_logger = logging.getLogger("penstock.consumer")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_REMIND = 30.0  # seconds after which the log says again that the server is away

NO_MEMORY = (redis.OutOfMemoryError, protocol_errors.OutOfMemory)
"""The server answers, and refuses what takes memory."""
_PASSING = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.ReadOnlyError,  # the old master of a failover
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
    redis.exceptions.TryAgainError,
    *NO_MEMORY,
    protocol_errors.Busy,
    protocol_errors.Loading,
    protocol_errors.Misconf,
    protocol_errors.NoReplicas,
    protocol_errors.ReadOnly,
)
_FINAL = (ClientClosed, redis.AuthenticationError, redis.exceptions.AuthorizationError)


def may_pass(error: Exception) -> bool:
    """Whether the same command may succeed later."""
    return (isinstance(error, _PASSING) and not isinstance(error, _FINAL)) or verdict(str(error)) is not None


def may_have_run(error: Exception) -> bool:
    """Whether the command that got this error may have been executed."""
    if verdict(str(error)) is State.WRITTEN:
        return True
    return isinstance(error, redis.ConnectionError | redis.TimeoutError) and not isinstance(
        error, NotSent | redis.BusyLoadingError
    )


class Outages:
    """The outage at hand, if there is one."""

    def __init__(self, what: str, patience: float | None) -> None:
        self._what = what
        self._patience = patience
        self._since: float | None = None
        self._logged = 0.0
        self._pause = _FIRST_PAUSE
        self.count = 0

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def failed(self, error: Exception, now: float) -> float:
        """The server did not answer: how many seconds to pause. Raises the error if the patience is at its end."""
        if self._since is None:
            self._since, self._pause = now, _FIRST_PAUSE
            self.count += 1
            self._tell(now, "the server does not answer (%s); the consumer of %s waits for it", error, self._what)
        elif now - self._logged >= _REMIND:
            self._tell(now, "the server has not answered for %.0f s (%s)", now - self._since, error)
        if self._patience is not None and now - self._since >= self._patience:
            raise error
        pause = self._pause
        self._pause = min(pause * 2, _LONGEST_PAUSE)
        return pause

    def answered(self, now: float) -> None:
        """The server answered."""
        if self._since is not None:
            since, self._since = self._since, None
            self._tell(
                now, "the server answers again, after %.1f s; the consumer of %s goes on", now - since, self._what
            )

    def _tell(self, now: float, text: str, *values: object) -> None:
        self._logged = now
        _logger.warning(text, *values)
