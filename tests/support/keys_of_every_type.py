"""A key of every type, and the contents of a key of any type; for tests that are not about one type."""

from __future__ import annotations

import redis

EVERY_TYPE = {"string": "s", "list": "l", "set": "e", "hash": "h", "zset": "z", "stream": "x"}


def fill_every_type(r: redis.Redis) -> None:
    r.set("s", "v")
    r.rpush("l", "a", "b")
    r.sadd("e", "a", "b")
    r.hset("h", mapping={"f": "1", "g": "2"})
    r.zadd("z", {"a": 1, "b": 2})
    r.xadd("x", {"f": "1"}, id="1-1")
    r.xadd("x", {"f": "2", "g": "3"}, id="2-0")


def contents(r: redis.Redis, name: str) -> object:
    """What a key of any type holds."""
    match r.type(name):
        case b"string":
            return r.get(name)
        case b"list":
            return r.lrange(name, 0, -1)
        case b"set":
            return r.smembers(name)
        case b"hash":
            return r.hgetall(name)
        case b"zset":
            return r.zrange(name, 0, -1, withscores=True)
        case b"stream":
            return r.xrange(name)
    return None
