"""How a connection is opened: by redis-py, whose handshake (TLS, HELLO, AUTH, SELECT, SETNAME) is taken as it is.

redis-py's connection object opens the socket and shakes hands; then the socket is ours. It must not retry anything by
itself: only the core knows which commands may be repeated.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

import redis
from redis.exceptions import AuthorizationError, BusyLoadingError
from redis.maint_notifications import MaintNotificationsConfig

from penstock.client.delivery import Settings
from penstock.client.engine.connection import ConnectionCore
from penstock.client.engine.encoding import pack
from penstock.client.events import Node

HEALTH_CHECK_INTERVAL = 15.0
"""Seconds; redis-py's default, 0, stands for this."""


def connection_options(pool: Any, retry: Any) -> dict[str, Any]:
    """The arguments for one connection of a pool, without the pool's own retries."""
    options = dict(pool.connection_kwargs)
    options.update(retry=retry, retry_on_error=[], health_check_interval=0)
    options.pop("retry_on_timeout", None)
    if "maint_notifications_config" in options or "host" in options:
        options["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    for name in ("maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler"):
        options.pop(name, None)
    if isinstance(pool, redis.ConnectionPool):  # asyncio's packs by itself
        options.setdefault("command_packer", _Packer())
    return options


def connection_maker(pool: Any, retry: Any, on_connect: Any = None) -> Callable[[], Any]:
    """Makes connections as a pool does, not yet open and not counted by the pool; `on_connect` replaces what they begin
    with.
    """
    options = connection_options(pool, retry)
    if on_connect is not None:
        options["redis_connect_func"] = on_connect
    return partial(pool.connection_class, **options)


def finds_leader(pool: Any) -> bool:
    """Whether the pool looks for the leader before every connection: those of shards, and redis-py's for Sentinel."""
    options = pool.connection_kwargs
    return "shard" in options or ("connection_pool" in options and bool(getattr(pool, "is_master", True)))


class _Packer:
    """For redis-py's own commands. hiredis, which it would take, ends the process when a signal's handler raises while
    it packs an int.
    """

    def pack(self, *arguments: Any) -> list[bytes]:
        return [pack(arguments)]


def is_refusal(error: Exception) -> bool:
    """The server answered, and would answer the same next time; a lost or a busy server is another matter."""
    if isinstance(error, BusyLoadingError):
        return False
    return isinstance(error, redis.AuthenticationError | AuthorizationError | redis.ResponseError | redis.DataError)


def lacks_password(error: Exception) -> bool:
    """Whether a server refuses because no password was given; it says so in words about HELLO."""
    return isinstance(error, redis.AuthenticationError) and str(error).startswith(
        ("HELLO must be called", "Authentication required", "NOAUTH")
    )


def as_lost(error: BaseException) -> Exception:
    """Any failure of a socket as redis-py names it."""
    if isinstance(error, redis.RedisError):
        return error
    if isinstance(error, TimeoutError):
        return redis.TimeoutError(str(error) or "the connection timed out")
    return redis.ConnectionError(str(error) or type(error).__name__)


def not_opened(error: Exception, connection: Any) -> Exception:
    """Why there is no connection, with the address, which redis-py leaves out once the socket is open."""
    lost = as_lost(error)
    where = str(
        getattr(connection, "path", "") or f"{getattr(connection, 'host', '')}:{getattr(connection, 'port', '')}"
    )
    if where not in str(lost):
        lost.args = (f"{where}: {lost}",)
    return lost


def report_failure(core: ConnectionCore, error: Exception, connection: Any, now: float) -> None:
    """Tell the core that a connection could not be opened."""
    if is_refusal(error):
        if lacks_password(error):
            error.args = (
                "the server needs a password: name a user and password in the URL, "
                "redis://user:password@host:port/0, or as username and password",
            )
        core.refused(error, now)
    else:
        core.connect_failed(not_opened(error, connection), now)


def server_of(connection: Any) -> Node | None:
    """Where an open connection leads; None if that is no host and port."""
    host = getattr(connection, "host", None)
    return (host, connection.port) if host else None


def limit_opening(connection: Any, seconds: float | None) -> None:
    """Limit the opening to the time that the first waiting command has left.

    The thread that opens a connection checks no other timeout during that.
    """
    if seconds is not None:
        for name in ("socket_timeout", "socket_connect_timeout"):
            own = getattr(connection, name, None)
            setattr(connection, name, seconds if own is None else min(own, seconds))


def close_half_open(error: BaseException) -> None:
    """Close the socket that was being connected: redis-py does so after an OSError, and after an interrupt leaves it to
    the collector.

    It is `sock` in the frames of redis-py, and `self` in those of the socket, which may not be complete: `close` fails
    for a socket whose `__init__` was interrupted, `detach` does not.
    """
    trace = error.__traceback__
    while trace is not None:
        names = trace.tb_frame.f_locals
        for sock in (names.get("sock"), names.get("self")):
            if isinstance(sock, socket.socket) and (number := sock.detach()) >= 0:
                os.close(number)
        trace = trace.tb_next


SETTINGS = (
    "delivery", "replay_filter", "command_timeout", "max_buffered_commands", "max_buffered_bytes", "when_full",
    "backoff_base", "backoff_cap",
)  # fmt: skip


def settings_from(pool: Any, given: dict[str, Any]) -> Settings:
    """Settings from keyword arguments, and from the query of a URL (`?delivery=at-most-once`), which end up in the
    pool.
    """
    found: dict[str, Any] = {}
    # Not for redis-py's connections; but the next client of the same pool is to find them, too.
    in_url = pool.__dict__.setdefault("_penstock_settings", {})
    in_url.update({name: pool.connection_kwargs.pop(name) for name in SETTINGS if name in pool.connection_kwargs})
    for name, value in in_url.items():
        if isinstance(value, str):
            found[name] = _from_query(name, value)
        elif value is not None:
            found[name] = value
    found.update({name: value for name, value in given.items() if name in SETTINGS})
    options = pool.connection_kwargs
    if "socket_timeout" in options:
        found["silence_timeout"] = options["socket_timeout"]
    found["health_check_interval"] = options.get("health_check_interval") or HEALTH_CHECK_INTERVAL
    if pool.__dict__.get("cache") is not None:
        raise redis.RedisError("this client has no client-side cache; leave out cache and cache_config")
    return Settings(**found)


def _from_query(name: str, value: str) -> Any:
    if name in ("delivery", "when_full"):
        return value
    if name == "replay_filter":
        raise ValueError("replay_filter is a function, and cannot stand in a URL; give it as an argument")
    return number_from_query(name, value, int if name.startswith("max") else float)


def number_from_query(name: str, value: str, kind: Callable[[str], Any]) -> Any:
    """The number that stands in a URL; `none` is for what may be without limit."""
    if name == "command_timeout" and value.lower() == "none":
        return None
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name}={value!r} in the URL is no number") from None


def encoding_of(pool: Any) -> tuple[str | None, str]:
    """The encoding of the reader; None leaves bytes."""
    encoder = pool.get_encoder()
    return (encoder.encoding if encoder.decode_responses else None), encoder.encoding_errors


def give_up_soon(sock: Any, seconds: float | None) -> None:
    """Have the kernel end a half-open connection, whose bytes are not acknowledged, after the silence timeout."""
    if seconds and hasattr(socket, "TCP_USER_TIMEOUT") and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
