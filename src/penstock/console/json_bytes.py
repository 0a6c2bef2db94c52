"""Bytes of the server as JSON for the browser.

A key goes out as two texts: how it looks, and its id, which is the key percent-encoded (of a long one a digest, see
long_names.py). Ids are what the browser sends back, so keys that are not UTF-8 work as others do. A payload goes out
cut to a bounded length, with its real size.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from penstock.console.masking import Mask

NAME = 200
"""Characters of a name that are shown."""
PREVIEW = 4096
"""Bytes of a payload in a list."""
WHOLE = 256 << 10
"""Bytes of a payload that is shown alone."""


def text(raw: bytes) -> str:
    """Bytes for people; those that are no UTF-8 as escapes."""
    return raw.decode("utf-8", "backslashreplace")


def key_id(key: bytes) -> str:
    """
    >>> key_id(b"a b/c"), key_of("a%20b%2Fc")
    ('a%20b%2Fc', b'a b/c')
    """
    return quote_from_bytes(key, safe="")


def key_of(name: str) -> bytes:
    return unquote_to_bytes(name)


def cut(raw: bytes, longest: int = NAME) -> str:
    """A name for people, or its beginning.

    >>> cut(b"short"), cut(b"a longer one", 8)
    ('short', 'a longer…')
    """
    shown = text(raw[: 4 * longest + 4])  # a character has at most four bytes
    return shown if len(shown) <= longest else f"{shown[:longest]}…"


def as_json(data: Any) -> bytes:
    """JSON that browsers read, whatever is in it: names and reports come from any program that writes to the server.

    >>> as_json({"half": chr(0xD800), "rate": float("nan")})
    b'{"half":"\\\\ud800","rate":null}'
    """
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:  # JSON has no NaN and no infinity
        return json.dumps(_finite(data), separators=(",", ":")).encode()


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _finite(each) for name, each in data.items()}
    if isinstance(data, list):
        return [_finite(each) for each in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def payload(raw: bytes, mask: Mask, limit: int = PREVIEW, field: bytes | None = None) -> dict[str, Any]:
    """A payload for the browser: its size, and its text or, if it is none, base64; `cut` if there is more."""
    size = len(raw)
    if mask:
        # Masking reads the whole payload; what is hidden may be anywhere in it.
        raw = mask.apply(raw) if field is None else mask.field(field, raw)
    shown, is_cut = raw[:limit], len(raw) > limit
    found: dict[str, Any] = {"size": size}
    if is_cut:
        found["cut"] = True
    try:
        found["text"] = _decode(shown, is_cut)
    except UnicodeDecodeError:
        found["base64"] = base64.b64encode(shown[: PREVIEW // 2]).decode()
    return found


def part(raw: bytes, size: int, mask: Mask, field: bytes | None = None) -> dict[str, Any]:
    """A payload of `size` bytes, of which the server sent the beginning. A mask hides it if there is more."""
    return {**payload(raw, mask, field=field), "size": size, **({"cut": True} if len(raw) < size else {})}


def _decode(raw: bytes, is_cut: bool) -> str:
    """UTF-8; the cut may have been inside a character."""
    for extra in range(4 if is_cut else 1):
        try:
            return raw[: len(raw) - extra].decode()
        except UnicodeDecodeError:
            continue
    return raw.decode()
