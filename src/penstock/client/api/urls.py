"""URLs of servers: redis-py's (`redis://`, `rediss://`, `unix://`), and those of a shard, a leader with its replicas:

    penstock://[user:password@]a:6379,b:6379,c:6379[/shard][?db=0&...]      some servers of the shard
    penstock+sentinel://[user:password@]a:26379,b:26379/name[?db=0&...]     Sentinels, and the name they have for it
    penstocks://, penstocks+sentinel://                                     the same with TLS

The query may have all options that redis-py takes in a URL, and those of our clients. `sentinel_username` and
`sentinel_password` are for the Sentinels; the user before the `@` is for the servers.
"""

from __future__ import annotations

import difflib
import inspect
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
import redis.asyncio
from redis.connection import parse_url

from penstock.client.drivers.connecting import SETTINGS
from penstock.client.drivers.leader_search import (
    SENTINEL_OPTIONS,
    AioLeaderConnection,
    AioLeaderSSLConnection,
    LeaderConnection,
    LeaderSSLConnection,
)
from penstock.client.engine.leader import Shard
from penstock.client.events import Node

PORT, SENTINEL_PORT = 6379, 26379
_SENTINEL = "+sentinel"
_SCHEMES = ("penstock", "penstocks", "penstock+sentinel", "penstocks+sentinel")
_SCHEMES_OF_REDIS_PY = ("redis", "rediss", "unix")


class WrongUrl(ValueError):
    """An error in a URL. Its text has no password, so a program may show it."""


def is_shard_url(url: str) -> bool:
    """
    >>> is_shard_url("penstock://a,b/orders"), is_shard_url("redis://a")
    (True, False)
    """
    return url.partition("://")[0] in _SCHEMES


def options_of_url(url: str) -> dict[str, Any]:
    """redis-py's options for a connection, and our settings; for a shard also `shard`. ValueError says what is wrong; a
    WrongUrl does so without the password.
    """
    options = _options_of_shard(url) if is_shard_url(url) else _options_of_server(url)
    kind = options.get("connection_class", redis.SSLConnection if "has_tls" in options else redis.Connection)
    _check_names(url, options, {*_names(kind), *SETTINGS, *_OF_POOL, *(_OF_SHARD if is_shard_url(url) else ())})
    return options


_OF_POOL = ("connection_class", "max_connections")
_OF_SHARD = ("shard", "has_tls", *SENTINEL_OPTIONS)


@cache
def _names(kind: type) -> set[str]:
    """The arguments of a kind of redis-py's connections, whose constructors hand on what they do not know."""
    constructors = [vars(base)["__init__"] for base in kind.__mro__[:-1] if "__init__" in vars(base)]
    return {
        name
        for constructor in constructors
        for name, parameter in inspect.signature(constructor).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and name != "self"
    }


def _check_names(url: str, options: dict[str, Any], known: set[str]) -> None:
    for name in options:
        if name in known:
            continue
        if "@" in urlsplit(url).query:  # a password with a question mark ends up there
            raise WrongUrl("it has an option that there is not; its name may be a part of the password")
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        with_tls = " without TLS, which is rediss:// or penstocks://" if name.startswith("ssl_") and not near else ""
        raise WrongUrl(f"{name!r} is no option of a URL{with_tls}{hint}")


def _options_of_server(url: str) -> dict[str, Any]:
    if url.partition("://")[0] not in _SCHEMES_OF_REDIS_PY:
        raise WrongUrl(
            f"a URL must begin with one of {', '.join(f'{name}://' for name in _SCHEMES_OF_REDIS_PY + _SCHEMES)}"
        )
    if "," in urlsplit(url).netloc.rpartition("@")[2]:
        raise WrongUrl(f"it names several servers, and only {', '.join(f'{name}://' for name in _SCHEMES)} take these")
    options: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call]
    if "host" in options and "db" not in options and urlsplit(url).path.strip("/"):
        raise WrongUrl("its path is no number of a database, as in redis://host:6379/0")
    return options


def _options_of_shard(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    is_sentinels, has_tls = parts.scheme.endswith(_SENTINEL), parts.scheme.startswith("penstocks")
    nodes = [_node(text, SENTINEL_PORT if is_sentinels else PORT) for text in hosts.split(",")]
    name = unquote(parts.path).strip("/")
    if is_sentinels and not name:
        raise ValueError(
            "a URL with Sentinels ends with the name they have for the shard, as in penstock+sentinel://a/orders"
        )
    if "/" in name:
        raise ValueError(f"the path {parts.path!r} of the URL is no name of a shard; the database is said by ?db=0")
    options = dict(parse_url(f"redis://{user}{at}localhost/?{parts.query}"))  # type: ignore[no-untyped-call]
    host, port = nodes[0]
    shard = Shard(name, nodes, is_sentinels)
    return {**options, "host": host, "port": port, "shard": shard, **({"has_tls": True} if has_tls else {})}


def _node(text: str, port: int) -> Node:
    """
    >>> _node("a", 6379), _node("[::1]:7000", 6379)
    (('a', 6379), ('::1', 7000))
    """
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, found = parts.hostname, parts.port
    except ValueError:
        host = found = None
    if not host:
        raise ValueError(f"{text!r} in the URL is no server: it is host or host:port, with commas between several")
    return unquote(host), found or port


def sync_pool(url: str, **options: Any) -> redis.ConnectionPool:
    """A pool for a URL; what the URL says comes before the options."""
    of_url = options_of_url(url)
    if not is_shard_url(url):
        return redis.ConnectionPool.from_url(url, **options)
    found = {**options, **of_url}
    kind = LeaderSSLConnection if found.pop("has_tls", False) else LeaderConnection
    return redis.ConnectionPool(connection_class=kind, **found)


def aio_pool(url: str, **options: Any) -> redis.asyncio.ConnectionPool:
    """As sync_pool, for asyncio."""
    of_url = options_of_url(url)
    if not is_shard_url(url):
        return redis.asyncio.ConnectionPool.from_url(url, **options)
    found = {**options, **of_url}
    kind = AioLeaderSSLConnection if found.pop("has_tls", False) else AioLeaderConnection
    return redis.asyncio.ConnectionPool(connection_class=kind, **found)
