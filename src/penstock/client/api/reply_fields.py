"""Replies that are maps, as the methods for streams and schemas take them apart."""

from __future__ import annotations

from typing import Any


def text(value: Any) -> str:
    """A name that may not be decoded yet. What is not UTF-8 can be encoded again with surrogateescape."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def map_fields(reply: Any) -> dict[str, Any]:
    """A map by names that are attributes: a dict in RESP3, pairs in a row in RESP2."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {text(name).replace("-", "_"): value for name, value in pairs}
