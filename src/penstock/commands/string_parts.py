"""Parts of a string: APPEND, STRLEN, GETRANGE, SETRANGE, LCS. strings.py says how strings are kept."""

from __future__ import annotations

from penstock.commands.strings import GROW, ONE_READ, READ, find_frozen
from penstock.engine.arguments import to_integer
from penstock.engine.concurrency.long_work import BYTES_AN_ELEMENT, LONG
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, key, keys
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, WrongType, syntax_error
from penstock.protocol.resp import RawPieces
from penstock.types.codec import PIECE
from penstock.types.subsequence import longest_length, longest_matches

_ZEROS = bytes(1 << 16)
EDITED_IN_PLACE = 1024
"""Length from which an appended-to string becomes a bytearray; a shorter one is copied faster than converted."""


def check_length(session: Session, length: int) -> None:
    """Refuse to make a string longer than the longest one a client could send."""
    if length > session.engine.config.proto_max_bulk_len:
        raise ReplyError("string exceeds maximum allowed size (proto-max-bulk-len)")


def grown(value: bytes | bytearray | None, length: int) -> bytearray:
    """A string to be edited in place, padded with zero bytes up to a length; itself if it is a bytearray already."""
    if type(value) is bytearray:
        while len(value) < length:
            value += _ZEROS[: length - len(value)]
        return value
    value = value or b""
    buffer = bytearray(max(length, len(value)))
    buffer[: len(value)] = value
    return buffer


def bytes_to_lengthen(session: Session, name: bytes, length: int) -> int:
    """How many bytes it takes to edit the string at a key and make it at least so long; see `grown`."""
    check_length(session, length)
    value = session.db.data.get(name)
    held = value.__alloc__() if type(value) is bytearray else 0
    length = max(length, len(value) if type(value) is bytes else 0)
    return length + (length >> 3) - held if length >= held else 0  # a bytearray that must grow takes an eighth more


def _growth_of_append(session: Session, argv: Argv) -> int:
    value = session.db.data.get(argv[1])
    if not isinstance(value, bytes | bytearray):
        return 0
    return bytes_to_lengthen(session, argv[1], len(value) + len(argv[2]))


def _growth_of_setrange(session: Session, argv: Argv) -> int:
    return bytes_to_lengthen(session, argv[1], to_integer(argv[2]) + len(argv[3])) if argv[3] else 0


def _check_words_of_setrange(session: Session, argv: Argv) -> None:
    offset = _to_offset(argv[2])
    if argv[3]:
        check_length(session, offset + len(argv[3]))


@command(
    "APPEND",
    arity=3,
    flags=GROW | Flag.FAST,
    keys=key(1, Access.WRITE, Effect.INSERT),
    group="string",
    syntax="key value",
    grows=_growth_of_append,
)
def append(session: Session, argv: Argv) -> Reply:
    """Append a string to the one at key, creating it, and answer the new length."""
    name, tail = argv[1], argv[2]
    db = session.db
    value = db.find_string(name)
    length = len(tail) if value is None else len(value) + len(tail)
    check_length(session, length)
    if value is None:
        db.set(name, tail)
    elif length < EDITED_IN_PLACE:
        db.replace(name, bytes(value) + tail)
    else:
        buffer = grown(value, 0)
        buffer += tail
        db.replace(name, buffer)
    return length


@command("STRLEN", arity=2, flags=READ, keys=key(1, Access.READ, Effect.SIGHT), group="string", syntax="key")
def strlen(session: Session, argv: Argv) -> Reply:
    """Answer the length of the string at key; 0 if there is none."""
    value = session.db.find_string(argv[1])
    return len(value) if value is not None else 0


def clip_range(start: int, end: int, length: int) -> tuple[int, int]:
    """Positions that may count from the end, as (first, one past the last); equal if the range is empty."""
    if start < 0 and end < 0 and start > end:
        return 0, 0
    start = max(start + length, 0) if start < 0 else start
    end = max(end + length, 0) if end < 0 else min(end, length - 1)
    return (start, end + 1) if start <= end else (0, 0)


@command("GETRANGE", arity=4, flags=Flag.READONLY, keys=ONE_READ, group="string", syntax="key start end", cost="O(N)")
def getrange(session: Session, argv: Argv) -> Reply:
    """Answer the bytes of the string at key from one position to another, both included; -1 is the last one."""
    start, end = to_integer(argv[2]), to_integer(argv[3])
    value = session.db.find_string(argv[1])
    if value is None:
        return b""
    first, stop = clip_range(start, end, len(value))
    work = (stop - first) // BYTES_AN_ELEMENT
    if work <= LONG or (type(value) is bytes and stop - first == len(value)):
        return bytes(value[first:stop])

    def compute() -> RawPieces:
        pieces = (bytes(value[at : min(at + PIECE, stop)]) for at in range(first, stop, PIECE))
        return RawPieces([b"$%d\r\n" % (stop - first), *pieces, b"\r\n"])

    return session.aside(work, compute)


@command("SUBSTR", arity=4, flags=Flag.READONLY, keys=ONE_READ, group="string", syntax="key start end", cost="O(N)")
def substr(session: Session, argv: Argv) -> Reply:
    """The old name of GETRANGE."""
    return getrange(session, argv)


@command(
    "SETRANGE",
    arity=4,
    flags=GROW,
    keys=key(1, Access.WRITE),
    group="string",
    syntax="key offset value",
    cost="O(N) with N bytes written",
    grows=_growth_of_setrange,
    check_words=_check_words_of_setrange,
)
def setrange(session: Session, argv: Argv) -> Reply:
    """Overwrite part of the string at key from an offset on and answer its length; a gap is filled with zero bytes."""
    name, offset, part = argv[1], _to_offset(argv[2]), argv[3]
    value = session.db.find_string(name)
    if not part:
        return len(value) if value is not None else 0
    end = offset + len(part)
    check_length(session, end)
    buffer = grown(value, end)
    buffer[offset:end] = part
    session.db.replace(name, buffer)
    return len(buffer)


def _to_offset(raw: bytes) -> int:
    offset = to_integer(raw)
    if offset < 0:
        raise ReplyError("offset is out of range")
    return offset


@command(
    "LCS",
    arity=-3,
    flags=Flag.READONLY,
    keys=keys(1, 2, Access.READ),
    group="string",
    syntax="key1 key2 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]",
    cost="O(N*M) with the two lengths",
)
def lcs(session: Session, argv: Argv) -> Reply:
    """Answer the longest common subsequence of two strings, or its length (LEN), or where its parts are (IDX)."""
    try:
        one, other = (find_frozen(session, name) or b"" for name in argv[1:3])
    except WrongType:
        raise ReplyError("The specified keys must contain string values") from None
    flags: set[bytes] = set()
    shortest = 0
    words = iter(argv[3:])
    for word in map(bytes.upper, words):
        if word == b"MINMATCHLEN":
            amount = next(words, None)
            if amount is None:
                raise syntax_error()
            shortest = to_integer(amount)
        elif word in (b"LEN", b"IDX", b"WITHMATCHLEN"):
            flags.add(word)
        else:
            raise syntax_error()
    if b"LEN" in flags and b"IDX" in flags:
        raise ReplyError("If you want both the length and indexes, please just use IDX.")
    if (len(one) + 1) * (len(other) + 1) * 4 > session.engine.config.proto_max_bulk_len:
        raise ReplyError("Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len")
    if b"LEN" in flags:
        return longest_length(one, other)
    matches = longest_matches(one, other)
    if b"IDX" not in flags:
        return b"".join(one[match.first : match.first + match.length] for match in reversed(matches))
    shown = 3 if b"WITHMATCHLEN" in flags else 2
    rows = [
        [[m.first, m.first + m.length - 1], [m.second, m.second + m.length - 1], m.length][:shown]
        for m in matches
        if m.length >= shortest
    ]
    return {b"matches": rows, b"len": sum(match.length for match in matches)}
