"""Server addresses (redis://user:password@host:port/0) for errors, logs and plans: without the password."""

from __future__ import annotations


def without_secrets(url: str) -> str:
    """
    >>> without_secrets("rediss://ada:p@ss@events:6380/2?password=other")
    'rediss://events:6380/2'
    """
    scheme, separator, rest = url.rpartition("://")
    return scheme + separator + rest.rpartition("@")[2].partition("?")[0]
