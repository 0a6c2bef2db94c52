"""Bitmaps: strings taken as arrays of bits. Bit 0 is the highest bit of the first byte.

SETBIT and BITFIELD edit a bytearray in place. Whole bitmaps are handled a chunk at a time by C calls, never byte by
byte in Python: counted and combined as big integers, searched with a regular expression, inverted with a translation
table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_, xor

from penstock.commands.string_parts import bytes_to_lengthen, clip_range, grown
from penstock.commands.strings import GROW, ONE_READ, ONE_UPDATED
from penstock.engine.arguments import to_integer
from penstock.engine.concurrency.long_work import BYTES_AN_ELEMENT, LONG
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, key, keys
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, syntax_error

Bits = bytes | bytearray

_INVERTED = bytes(255 - byte for byte in range(256))
_NOT_CLEAR = re.compile(rb"[^\x00]").search
_NOT_SET = re.compile(rb"[^\xff]").search

CHUNK = 1 << 14
"""Bytes handled at once: they stay in the processor's cache."""
_CLEAR_CHUNK, _SET_CHUNK = b"\x00" * CHUNK, b"\xff" * CHUNK


def _bad_offset() -> ReplyError:
    return ReplyError("bit offset is not an integer or out of range")


def to_bit_offset(session: Session, raw: bytes, width: int = 0) -> int:
    """The number of a bit; with a width, `#3` is the place of the fourth field of that width."""
    by_width = width and raw.startswith(b"#")
    offset = to_integer(raw[1:], _bad_offset) * width if by_width else to_integer(raw, _bad_offset)
    if not 0 <= offset >> 3 < session.engine.config.proto_max_bulk_len:
        raise _bad_offset()
    return offset


def _bit_to_set(session: Session, argv: Argv) -> int:
    """The place of the bit of SETBIT, if its value is one."""
    offset = to_bit_offset(session, argv[2])
    if argv[3] not in (b"0", b"1"):
        raise ReplyError("bit is not an integer or out of range")
    return offset


@command(
    "SETBIT",
    arity=4,
    flags=GROW | Flag.DIRECT,
    keys=ONE_UPDATED,
    group="bitmap",
    syntax="key offset value",
    cost="O(1), and O(N) when the string must grow",
    grows=lambda session, argv: bytes_to_lengthen(session, argv[1], (to_bit_offset(session, argv[2]) >> 3) + 1),
    check_words=_bit_to_set,
)
def setbit(session: Session, argv: Argv) -> Reply:
    """Set or clear a bit of the string at key, which grows as needed, and answer what the bit was."""
    offset = _bit_to_set(session, argv)
    db, name = session.db, argv[1]
    at, mask = offset >> 3, 0x80 >> (offset & 7)
    value = db.find_string(name)
    wanted = mask if argv[3] == b"1" else 0
    grows = value is None or at >= len(value)
    found = 0 if value is None or grows else value[at] & mask
    if grows or found != wanted:
        buffer = grown(value, at + 1)
        buffer[at] ^= found ^ wanted
        db.replace(name, buffer)
    return 1 if found else 0


@command("GETBIT", arity=3, flags=Flag.READONLY | Flag.FAST, keys=ONE_READ, group="bitmap", syntax="key offset")
def getbit(session: Session, argv: Argv) -> Reply:
    """Answer a bit of the string at key; bits after its end are 0."""
    offset = to_bit_offset(session, argv[2])
    value = session.db.find_string(argv[1])
    at = offset >> 3
    return value[at] >> (7 - (offset & 7)) & 1 if value is not None and at < len(value) else 0


# -- whole bitmaps --------------------------------------------------------------------------------------------


def _is_in_bits(words: Argv) -> bool:
    """Whether a range is in bits; BYTE, the default, counts bytes."""
    if not words or words[0].upper() == b"BYTE":
        return False
    if words[0].upper() == b"BIT":
        return True
    raise syntax_error()


def _count(value: Bits, first: int, stop: int) -> int:
    """Bits set from bit number `first` up to but not including `stop`."""
    if first >= stop:
        return 0
    low, high = first >> 3, (stop + 7) >> 3
    total = 0
    for at in range(low, high, CHUNK):
        total += int.from_bytes(value[at : min(at + CHUNK, high)], "big").bit_count()
    before = value[low] >> (8 - (first & 7))
    after = value[high - 1] & (0xFF >> (stop & 7)) if stop & 7 else 0
    return total - before.bit_count() - after.bit_count()


@command(
    "BITCOUNT",
    arity=-2,
    flags=Flag.READONLY,
    keys=ONE_READ,
    group="bitmap",
    syntax="key [start end [BYTE | BIT]]",
    cost="O(N)",
)
def bitcount(session: Session, argv: Argv) -> Reply:
    """Answer how many bits of the string at key are set, in all of it or in a range of bytes or bits."""
    value = session.db.find_string(argv[1])
    if value is None:
        return 0
    first, stop, unit = 0, len(value), 8
    if len(argv) == 2:
        if stop <= CHUNK:
            return int.from_bytes(value, "big").bit_count()
    else:
        if len(argv) not in (4, 5):
            raise syntax_error()
        start, end = to_integer(argv[2]), to_integer(argv[3])
        if 0 > start > end:
            return 0  # Redis 7.0 answers this before it checks the unit
        unit = 1 if _is_in_bits(argv[4:]) else 8
        first, stop = clip_range(start, end, len(value) * 8 // unit)
    first, stop = first * unit, min(stop * unit, len(value) * 8)
    work = (stop - first) // (8 * BYTES_AN_ELEMENT)
    return _count(value, first, stop) if work <= LONG else session.aside(work, lambda: _count(value, first, stop))


def _find(value: Bits, bit: int, first: int, stop: int) -> int:
    """The number of the first bit like `bit` from `first` up to but not including `stop`, or -1."""
    search, flip, dull = (_NOT_CLEAR, 0, _CLEAR_CHUNK) if bit else (_NOT_SET, 0xFF, _SET_CHUNK)
    at = first >> 3
    found = (value[at] ^ flip) & (0xFF >> (first & 7))  # the first byte counts only from its bit `first` on
    if not found:
        at += 1
        while value[at : at + CHUNK] == dull:
            at += CHUNK
        match = search(value, at, (stop + 7) >> 3)
        if match is None:
            return -1
        at = match.start()
        found = value[at] ^ flip
    position = at * 8 + 8 - found.bit_length()
    return position if position < stop else -1


@command(
    "BITPOS",
    arity=-3,
    flags=Flag.READONLY,
    keys=ONE_READ,
    group="bitmap",
    syntax="key bit [start [end [BYTE | BIT]]]",
    cost="O(N)",
)
def bitpos(session: Session, argv: Argv) -> Reply:
    """Answer the place of the first bit that is set (1) or clear (0) in the string at key, or in a range of it.

    Without an end the string is followed by endless clear bits; with one, -1 tells that there is no such bit.
    """
    bit = to_integer(argv[2])
    if bit not in (0, 1):
        raise ReplyError("The bit argument must be 1 or 0.")
    value = session.db.find_string(argv[1])
    if value is None:
        return -1 if bit else 0
    if len(argv) > 6:
        raise syntax_error()
    start = to_integer(argv[3]) if len(argv) > 3 else 0
    unit = 1 if _is_in_bits(argv[5:]) else 8
    end = to_integer(argv[4]) if len(argv) > 4 else -1
    length = len(value) * 8 // unit
    start = max(start + length, 0) if start < 0 else start
    end = max(end + length, 0) if end < 0 else end
    end = min(end, length - 1)
    if start > end:
        return -1
    position = _find(value, bit, start * unit, (end + 1) * unit)
    return len(value) * 8 if position < 0 and not bit and len(argv) < 5 else position


_OPERATIONS: dict[bytes, Callable[[int, int], int]] = {b"AND": and_, b"OR": or_, b"XOR": xor}


def _growth_of_bitop(session: Session, argv: Argv) -> int:
    values = map(session.db.data.get, argv[3:])
    return max((len(value) for value in values if isinstance(value, Bits)), default=0)


@command(
    "BITOP",
    arity=-4,
    flags=GROW,
    keys=key(2, Access.WRITE, Effect.OVERWRITE) + keys(3, -1, Access.READ),
    group="bitmap",
    syntax="AND | OR | XOR | NOT destkey key [key ...]",
    cost="O(N)",
    grows=_growth_of_bitop,
    check_words=lambda session, argv: _operation(argv),
)
def bitop(session: Session, argv: Argv) -> Reply:
    """Combine the strings at several keys bit by bit, store the result, and answer its length.

    Shorter strings, and missing keys, count as followed by zero bytes.
    """
    operation, destination = _operation(argv), argv[2]
    db = session.db
    values = [db.find_string(name) or b"" for name in argv[3:]]
    work = sum(map(len, values)) // BYTES_AN_ELEMENT

    def commit(result: Bits) -> int:
        if result:
            db.set(destination, result)
        else:
            db.delete(destination)
        return len(result)

    if work <= LONG:
        return commit(_combine(operation, values))
    return session.aside(work, lambda: _combine(operation, values), commit)


def _operation(argv: Argv) -> Callable[[int, int], int] | None:
    """What BITOP is to do; None to invert the one value."""
    operation = _OPERATIONS.get(argv[1].upper())
    if operation is None:
        if argv[1].upper() != b"NOT":
            raise syntax_error()
        if len(argv) != 4:
            raise ReplyError("BITOP NOT must be called with a single source key.")
    return operation


def _combine(operation: Callable[[int, int], int] | None, values: list[Bits]) -> Bits:
    """The result, a chunk at a time; without an operation it is the one value inverted."""
    size = max(map(len, values))
    if size <= CHUNK:
        return _combine_chunk(operation, values, size)
    result = bytearray(size)
    for at in range(0, size, CHUNK):
        end = min(at + CHUNK, size)
        result[at:end] = _combine_chunk(operation, [value[at:end] for value in values], end - at)
    return result


def _combine_chunk(operation: Callable[[int, int], int] | None, values: list[Bits], size: int) -> bytes:
    if operation is None:
        return bytes(values[0].translate(_INVERTED))
    # As little-endian numbers, strings of different lengths are aligned at their first bytes.
    return reduce(operation, (int.from_bytes(value, "little") for value in values)).to_bytes(size, "little")


# -- integers of any width ------------------------------------------------------------------------------------


@dataclass(slots=True)
class FieldOperation:
    """One GET, SET or INCRBY of a BITFIELD."""

    action: bytes
    signed: bool
    width: int
    offset: int
    amount: int
    overflow: bytes  # WRAP, SAT or FAIL

    @property
    def end(self) -> int:
        """The length in bytes a string needs to hold the whole field."""
        return (self.offset + self.width + 7) >> 3

    def read(self, value: Bits) -> int:
        """The field as it is; what lies after the end of the string is 0."""
        low, high = self.offset >> 3, self.end
        around = int.from_bytes(value[low:high].ljust(high - low, b"\0"), "big")
        return self._wrapped(around >> (high * 8 - self.offset - self.width))

    def write(self, buffer: bytearray, number: int) -> None:
        low, high = self.offset >> 3, self.end
        shift = high * 8 - self.offset - self.width
        mask = ((1 << self.width) - 1) << shift
        around = int.from_bytes(buffer[low:high], "big")
        buffer[low:high] = (around & ~mask | (number << shift) & mask).to_bytes(high - low, "big")

    def fitted(self, number: int) -> int | None:
        """The number if the field can hold it, else what the overflow rule makes of it; None refuses it."""
        lowest = -1 << (self.width - 1) if self.signed else 0
        highest = (1 << (self.width - self.signed)) - 1
        if lowest <= number <= highest:
            return number
        if self.overflow == b"FAIL":
            return None
        if self.overflow == b"SAT":
            return highest if number > highest else lowest
        return self._wrapped(number)

    def _wrapped(self, number: int) -> int:
        number &= (1 << self.width) - 1
        return number - (1 << self.width) if self.signed and number >> (self.width - 1) else number


def _field_type(raw: bytes) -> tuple[bool, int]:
    """`i16` or `u8` as (signed, width)."""

    def bad_type() -> ReplyError:
        return ReplyError(
            "Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is."
        )

    if raw[:1] not in (b"i", b"u"):
        raise bad_type()
    signed = raw[:1] == b"i"
    width = to_integer(raw[1:], bad_type)
    if not 1 <= width <= 63 + signed:
        raise bad_type()
    return signed, width


_ARGUMENTS = {b"GET": 2, b"SET": 3, b"INCRBY": 3, b"OVERFLOW": 1}


def _field_operations(session: Session, words: Argv) -> Iterator[FieldOperation]:
    overflow = b"WRAP"
    at = 0
    while at < len(words):
        action = words[at].upper()
        count = _ARGUMENTS.get(action, len(words))
        arguments = words[at + 1 : at + 1 + count]
        if len(arguments) < count:
            raise syntax_error()
        at += 1 + count
        if action == b"OVERFLOW":
            overflow = arguments[0].upper()
            if overflow not in (b"WRAP", b"SAT", b"FAIL"):
                raise ReplyError("Invalid OVERFLOW type specified")
            continue
        signed, width = _field_type(arguments[0])
        offset = to_bit_offset(session, arguments[1], width)
        amount = to_integer(arguments[2]) if count == 3 else 0
        if action == b"SET" and not signed:
            amount %= 1 << 64  # so that -1 is the greatest number, not the least
        yield FieldOperation(action, signed, width, offset, amount, overflow)


def _apply(buffer: bytearray, operation: FieldOperation) -> tuple[int | None, bool]:
    """Read or change a field; answer the reply and whether the number changed.

    The reply is the old number (GET, SET), the new one (INCRBY), or None if the overflow rule refused.
    """
    old = operation.read(buffer)
    if operation.action == b"GET":
        return old, False
    wanted = operation.amount if operation.action == b"SET" else old + operation.amount
    new = operation.fitted(wanted)
    if new is None:
        return None, False
    operation.write(buffer, new)
    return old if operation.action == b"SET" else new, operation.read(buffer) != old


def _access_of_bitfield(argv: Sequence[bytes]) -> Access:
    """Read access if every subcommand is a complete GET or OVERFLOW; arguments that are wrong count as a write, as in
    Redis.
    """
    at = 2
    while at < len(argv):
        action = argv[at].upper()
        at += 1 + _ARGUMENTS.get(action, 0)
        if action not in (b"GET", b"OVERFLOW") or at > len(argv):
            return Access.UPDATE
    return Access.READ


def _growth_of_bitfield(session: Session, argv: Argv) -> int:
    ends = [operation.end for operation in _field_operations(session, argv[2:]) if operation.action != b"GET"]
    return bytes_to_lengthen(session, argv[1], max(ends)) if ends else 0


@command(
    "BITFIELD",
    arity=-2,
    flags=GROW,
    keys=key(1, Access.UPDATE, narrow=_access_of_bitfield, still_writes=True),
    group="bitmap",
    syntax="key [GET type offset | [OVERFLOW WRAP | SAT | FAIL] SET type offset value | "
    "INCRBY type offset increment ...]",
    cost="O(1) an operation",
    grows=_growth_of_bitfield,
    check_words=lambda session, argv: list(_field_operations(session, argv[2:])),
)
def bitfield(session: Session, argv: Argv) -> Reply:
    """Read, set and count integers of any width (u8, i5, ...) at any place in the string at key, all at once."""
    operations = list(_field_operations(session, argv[2:]))
    writes = [operation for operation in operations if operation.action != b"GET"]
    db, name = session.db, argv[1]
    value = db.find_string(name)
    if not writes:
        return [operation.read(value or b"") for operation in operations]
    needed = max(operation.end for operation in writes)
    grows = value is None or len(value) < needed
    buffer = grown(value, needed)
    results = [_apply(buffer, operation) for operation in operations]
    if grows or any(changed for _, changed in results):
        db.replace(name, buffer)
    return [reply for reply, _ in results]


@command(
    "BITFIELD_RO",
    arity=-2,
    flags=Flag.READONLY | Flag.FAST,
    keys=ONE_READ,
    group="bitmap",
    syntax="key [GET type offset ...]",
    cost="O(1) an operation",
)
def bitfield_ro(session: Session, argv: Argv) -> Reply:
    """Read integers of any width at any place in the string at key."""
    operations = list(_field_operations(session, argv[2:]))
    if any(operation.action != b"GET" for operation in operations):
        raise ReplyError("BITFIELD_RO only supports the GET subcommand")
    value = session.db.find_string(argv[1]) or b""
    return [operation.read(value) for operation in operations]
