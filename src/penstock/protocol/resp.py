"""Python values to RESP2 and RESP3.

A handler returns plain values; which bytes they become depends on the protocol the client asked for, so the
choice is made here and nowhere else. What plain Python cannot express has a type of its own below.

    None            null bulk            NULL_ARRAY     null array (RESP2), null (RESP3)
    int, bool       integer              float          bulk (RESP2), double (RESP3)
    bytes, str      bulk string          Status         simple string
    list, tuple     array                Pairs          flat array (RESP2), array of pairs (RESP3)
    dict            flat array / map     set, Members   array / set
    Verbatim        bulk / verbatim      Push           array / push
    ReplyError      error                Raw, RawPieces, StreamedPieces: bytes that are encoded already

Rejected: handlers that write RESP themselves. It is a little faster, and then MULTI, scripts and RESP3 each
need a second version of every command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from types import NoneType
from typing import Any, Final

from penstock.protocol.errors import ReplyError

Append = Callable[[bytes | memoryview], None]


class Status(bytes):
    """A simple string: +OK."""


class Raw(bytes):
    """A reply that is encoded already."""


class RawPieces:
    """A large reply that is encoded already, in pieces that may be made only when they are asked for, once.

    The pieces must not depend on data that can change: in a transaction other commands run before they are made.
    """

    __slots__ = ("pieces",)

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.pieces = pieces

    def __repr__(self) -> str:
        return "RawPieces(...)"  # showing them would use them up


class StreamedPieces(RawPieces):
    """A reply whose pieces are made as its client takes them, so that it may be larger than memory.

    The source of the pieces has its own copy of the data. A connection makes only as many as it can send.
    """

    __slots__ = ()


class Verbatim(str):
    """Text for people (INFO, CLIENT LIST): a bulk string in RESP2, a verbatim string in RESP3."""


class Pairs(list[tuple[bytes, Any]]):
    """(member, score) or (field, value) rows: flat in RESP2, nested in RESP3."""


class Members(list[Any]):
    """A set whose order should be kept: an array in RESP2, a set in RESP3."""


class Push(list[Any]):
    """Out-of-band data: a pub/sub message."""


class _Sentinel:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


OK: Final = Status(b"OK")
QUEUED: Final = Status(b"QUEUED")
PONG: Final = Status(b"PONG")
NULL_ARRAY: Final = _Sentinel("NULL_ARRAY")
NO_REPLY: Final = _Sentinel("NO_REPLY")
"""The handler has answered already (pushes), or will later (it blocked)."""

PIECE: Final = 512
"""Elements of a long reply that are encoded and joined at once."""
LONE: Final = 4096
"""A string of so many bytes is a piece by itself, and is not copied."""

_ONLY_BYTES: Final = {bytes}
_HEADS: Final = [b"\r\n$%d\r\n" % length for length in range(256)]
"""The end of a string and the header of the next one, by its length."""

INTEGERS: Final = [b":%d\r\n" % n for n in range(1024)]
"""Prepared replies for small integers, the most frequent replies."""


def format_float(value: float) -> bytes:
    """A float as Redis 7.0 prints it: seventeen significant digits, so that it reads back the same.

    >>> format_float(3.0), format_float(0.1), format_float(1e21), format_float(float("-inf"))
    (b'3', b'0.10000000000000001', b'1e+21', b'-inf')
    """
    return b"%.17g" % value


def encode(value: Any, protocol: int = 2) -> bytes:
    """One reply as bytes.

    >>> encode([1, b"a", None])
    b'*3\\r\\n:1\\r\\n$1\\r\\na\\r\\n$-1\\r\\n'
    """
    parts: list[Any] = []  # bytes, and views in a RawPieces, which begins with bytes and has more than one piece
    write(value, protocol, parts.append)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write(value: Any, protocol: int, append: Append) -> None:
    """Append the encoded reply piece by piece; the caller joins a big array once."""
    kind = type(value)
    if kind is bytes:
        append(b"$%d\r\n%b\r\n" % (len(value), value))
    elif kind is int:
        append(b":%d\r\n" % value)
    elif kind is list or kind is tuple:
        _array(b"*", value, protocol, append)
    elif value is None:
        append(b"$-1\r\n" if protocol == 2 else b"_\r\n")
    else:
        writer = _WRITERS.get(kind)
        if writer is None:
            writer = _writer_for(value)
        writer(value, protocol, append)


def in_pieces(kind: type, count: int, values: Iterable[Any], protocol: int, size: int = PIECE) -> RawPieces:
    """The encoding of a `kind` (list, Members, dict or Pairs) of so many values, as `write` gives it, without one long
    call.

    The values of a dict and of Pairs are pairs.

    >>> b"".join(in_pieces(dict, 1, [(b"field", b"value")], protocol=3).pieces)
    b'%1\\r\\n$5\\r\\nfield\\r\\n$5\\r\\nvalue\\r\\n'
    """
    return RawPieces(list(make_pieces(kind, count, values, protocol, size)))


def make_pieces(
    kind: type, count: int, values: Iterable[Any], protocol: int, size: int = PIECE
) -> Iterator[bytes | memoryview]:
    """The pieces of `in_pieces`, each made when it is asked for."""
    mark = b"*"
    if kind is dict or (kind is Pairs and protocol == 2):
        values = chain.from_iterable(values)
        mark, count = (b"*", 2 * count) if protocol == 2 else (b"%", count)
    elif kind is Members and protocol == 3:
        mark = b"~"
    yield b"%b%d\r\n" % (mark, count)
    rest = iter(values)
    while chunk := list(islice(rest, size)):
        yield from _pieces_of(chunk, protocol)


def array_of_chunks(chunks: Iterable[list[Any]], protocol: int) -> RawPieces:
    """An array of the values in these lists, each of a few values, whose number is known only at the end.

    >>> b"".join(array_of_chunks([[b"a"], [], [1, None]], protocol=2).pieces)
    b'*3\\r\\n$1\\r\\na\\r\\n:1\\r\\n$-1\\r\\n'
    """
    pieces: list[bytes | memoryview] = [b""]
    count = 0
    for chunk in chunks:
        if chunk:
            count += len(chunk)
            pieces.extend(_pieces_of(chunk, protocol))
    pieces[0] = b"*%d\r\n" % count
    return RawPieces(pieces)


def _pieces_of(values: list[Any], protocol: int) -> Iterator[bytes | memoryview]:
    """A few values, joined, except strings that are a piece by themselves."""
    if type(values[-1]) is bytes and set(map(type, values)) == _ONLY_BYTES:
        lengths = list(map(len, values))
        if max(lengths) < len(_HEADS):  # most are: 100 ns each instead of 220
            heads = map(_HEADS.__getitem__, lengths)
            yield b"".join(chain.from_iterable(zip(heads, values, strict=True)))[2:] + b"\r\n"
            return
    parts: list[Any] = []
    for value in values:
        if type(value) is not bytes:
            write(value, protocol, parts.append)
        elif len(value) < LONE:
            parts.append(b"$%d\r\n%b\r\n" % (len(value), value))
        else:
            yield b"".join(parts) + b"$%d\r\n" % len(value)
            yield value
            parts = [b"\r\n"]
    yield b"".join(parts)


_FORMS: Final = frozenset({bytes, NoneType, bool, float, bytearray, memoryview, Raw, RawPieces, StreamedPieces})
"""Values that have a form, whatever is in them."""
DEEPEST: Final = 200
"""Levels of arrays in a reply that is not ours; to encode more would end Python's stack."""


def require_form(value: Any, depth: int = 0) -> None:
    """Raise a TypeError that names what has no form here, or what a client could not read; for replies of modules.

    >>> require_form([1, {b"a": 1 << 64}])
    Traceback (most recent call last):
    TypeError: an int of more than 64 bits, which has no RESP form
    """
    kind = type(value)
    if kind in _FORMS or (depth == 0 and value is NO_REPLY) or value is NULL_ARRAY:
        return
    if kind is int:
        if not -(1 << 63) <= value < 1 << 63:
            raise TypeError("an int of more than 64 bits, which has no RESP form")
    elif isinstance(value, Status):
        if value.translate(None, b"\r\n") != value:
            raise TypeError("a Status with a line break")
    elif isinstance(value, str):
        _require_text(value)
    elif isinstance(value, list | tuple | set | frozenset | dict) and kind is not Push:
        if depth == DEEPEST:
            raise TypeError(f"more than {DEEPEST} levels of arrays")
        if kind is Pairs and not all(isinstance(row, list | tuple) for row in value):
            raise TypeError("Pairs that are no pairs")
        for item in chain.from_iterable(value.items()) if isinstance(value, dict) else value:
            if type(item) is not bytes:
                require_form(item, depth + 1)
    elif not isinstance(value, ReplyError | float):
        raise TypeError(f"{_with_article(kind.__name__)}, which has no RESP form")


def _require_text(text: str) -> None:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise TypeError("a str that is no text") from None


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _array(mark: bytes, values: Any, protocol: int, append: Append) -> None:
    append(b"%b%d\r\n" % (mark, len(values)))
    for value in values:
        if type(value) is bytes:
            append(b"$%d\r\n%b\r\n" % (len(value), value))
        else:
            write(value, protocol, append)


def _status(value: Status, protocol: int, append: Append) -> None:
    append(b"+%b\r\n" % value)


def _raw(value: Raw, protocol: int, append: Append) -> None:
    append(value)


def _raw_pieces(value: RawPieces, protocol: int, append: Append) -> None:
    for piece in value.pieces:
        append(piece)


def _bool(value: bool, protocol: int, append: Append) -> None:
    append(b":%d\r\n" % value)


def _float(value: float, protocol: int, append: Append) -> None:
    text = format_float(value)
    append(b"$%d\r\n%b\r\n" % (len(text), text) if protocol == 2 else b",%b\r\n" % text)


def _text(value: str, protocol: int, append: Append) -> None:
    raw = value.encode("utf-8", "surrogateescape")
    append(b"$%d\r\n%b\r\n" % (len(raw), raw))


def _buffer(value: bytearray | memoryview, protocol: int, append: Append) -> None:
    raw = bytes(value)  # a view may have items of several bytes
    append(b"$%d\r\n%b\r\n" % (len(raw), raw))


def _verbatim(value: Verbatim, protocol: int, append: Append) -> None:
    if protocol == 2:
        _text(value, protocol, append)
        return
    raw = value.encode("utf-8", "surrogateescape")
    append(b"=%d\r\ntxt:%b\r\n" % (len(raw) + 4, raw))


def _map(value: dict[Any, Any], protocol: int, append: Append) -> None:
    append(b"*%d\r\n" % (2 * len(value)) if protocol == 2 else b"%%%d\r\n" % len(value))
    for key, item in value.items():
        write(key, protocol, append)
        write(item, protocol, append)


def _set(value: Iterable[Any], protocol: int, append: Append) -> None:
    _array(b"*" if protocol == 2 else b"~", value, protocol, append)


def _pairs(value: Pairs, protocol: int, append: Append) -> None:
    if protocol == 2:
        _array(b"*", [item for pair in value for item in pair], protocol, append)
    else:
        _array(b"*", value, protocol, append)


def _push(value: Push, protocol: int, append: Append) -> None:
    _array(b"*" if protocol == 2 else b">", value, protocol, append)


def _error(value: ReplyError, protocol: int, append: Append) -> None:
    append(b"-%b\r\n" % value.wire())


def _null_array(value: object, protocol: int, append: Append) -> None:
    append(b"*-1\r\n" if protocol == 2 else b"_\r\n")


def _nothing(value: object, protocol: int, append: Append) -> None:
    return


_WRITERS: dict[type, Callable[[Any, int, Append], None]] = {
    Status: _status,
    Raw: _raw,
    RawPieces: _raw_pieces,
    bool: _bool,
    float: _float,
    str: _text,
    bytearray: _buffer,
    memoryview: _buffer,
    Verbatim: _verbatim,
    dict: _map,
    set: _set,
    frozenset: _set,
    Pairs: _pairs,
    Members: _set,
    Push: _push,
    ReplyError: _error,
}


def _writer_for(value: Any) -> Callable[[Any, int, Append], None]:
    """The writer of the nearest base class, remembered; the two sentinels have one each."""
    if value is NULL_ARRAY:
        return _null_array
    if value is NO_REPLY:
        return _nothing
    for base in type(value).__mro__[1:]:
        if base is list or base is tuple:
            return lambda items, protocol, append: _array(b"*", items, protocol, append)
        writer = _WRITERS.get(base)
        if writer is not None:
            _WRITERS[type(value)] = writer
            return writer
    raise TypeError(f"a handler returned {type(value).__name__}, which has no RESP form")


def pack(*argv: bytes) -> bytes:
    """A command in the form of the wire.

    >>> pack(b"GET", b"k")
    b'*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\nk\\r\\n'
    """
    return b"*%d\r\n%b" % (len(argv), b"".join([b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in argv]))
