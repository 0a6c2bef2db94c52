"""INFO and CLIENT LIST as dictionaries. redis-py's own parsers guess at numbers, which turns an id into a float."""

from __future__ import annotations

from typing import Any


def parse_info(raw: Any) -> dict[str, str]:
    """
    >>> parse_info(b"# Server\\r\\nredis_version:7.0.15\\r\\nrole:master\\r\\n")
    {'redis_version': '7.0.15', 'role': 'master'}
    """
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    pairs = (line.partition(":") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: value for name, separator, value in pairs if separator}


def parse_pairs(text: str, between: str = " ") -> dict[str, str]:
    """
    >>> parse_pairs("ip=127.0.0.1,port=7001,lag=0", ",")
    {'ip': '127.0.0.1', 'port': '7001', 'lag': '0'}
    """
    pairs = (part.partition("=") for part in text.split(between))
    return {name: value for name, separator, value in pairs if separator}


def number(found: dict[str, str], name: str) -> float:
    """A field of INFO; 0 if it is missing or no number."""
    try:
        return float(found.get(name, 0))
    except ValueError:
        return 0.0
