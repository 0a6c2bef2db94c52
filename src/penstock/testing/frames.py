"""Where one RESP frame ends and the next begins, without parsing the values.

The fault proxy must pass on bytes exactly as they came and still know which reply belongs to which request. hiredis
gives values and not their bytes, so the boundaries are found here: RESP2 and RESP3, requests and replies alike.
"""

from __future__ import annotations

_LINES = b"+-:,#_("  # the whole frame is one line
_BULKS = b"$=!"  # a length, then so many bytes and a line break
_AGGREGATES = {ord("*"): 1, ord("~"): 1, ord(">"): 1, ord("%"): 2, ord("|"): 2}  # frames inside, for each one counted
_ATTRIBUTE = ord("|")


def frame_end(data: bytes | bytearray, start: int = 0) -> int:
    """The position after the frame that begins at `start`, or -1 while it is not whole. O(parts of the frame).

    An attribute counts as part of the reply it announces.

    >>> frame_end(b"*2\\r\\n$1\\r\\na\\r\\n:1\\r\\n+OK\\r\\n"), frame_end(b"$5\\r\\nhel")
    (15, -1)
    """
    missing = 1
    while missing:
        line = data.find(b"\r\n", start)
        if line < 0:
            return -1
        kind = data[start]
        missing -= 1
        if kind in _BULKS:
            size = int(data[start + 1 : line])
            start = line + 2 if size < 0 else line + 4 + size
            if start > len(data):
                return -1
            continue
        if kind in _AGGREGATES:
            missing += max(int(data[start + 1 : line]), 0) * _AGGREGATES[kind] + (kind == _ATTRIBUTE)
        elif kind not in _LINES:
            raise ValueError(f"no RESP frame begins with {bytes(data[start : start + 1])!r}")
        start = line + 2
    return start


def command_name(frame: bytes) -> bytes:
    """The first word of a request, in capitals.

    >>> command_name(b"*2\\r\\n$3\\r\\nget\\r\\n$1\\r\\nk\\r\\n")
    b'GET'
    """
    parts = frame.split(b"\r\n", 3)
    return parts[2].upper() if len(parts) == 4 else b""
