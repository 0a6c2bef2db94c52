# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of frames.frames_in; that file says what it does, and the same tests run on both.

The arguments of a command are copied once, out of what came. A header or a payload that is not as servers write it is
left to the functions that know every case.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcmp

from zlib import crc32

from penstock.replication import frames
from penstock.storage.batches import commands_of

cdef object _crc32 = crc32
cdef object _header_at = frames.header_at
cdef object _damaged = frames.damaged
cdef object _commands_of = commands_of
cdef object _feed = frames.FEED
cdef object _Frame = frames.Frame
cdef object _new = tuple.__new__
cdef enum:
    SHORTEST_HEADER = 26
    LONGEST_LENGTH = 12  # digits
    CHECKSUM = 8  # digits
    NAME = 5  # bytes of "#SUM "
    NEWLINE = 2
    SHORT_DIGITS = 9  # of a length that is read the quick way
    MOST_ARGUMENTS = 1024  # of a command that is read so
    LONGEST_NAME = 32


cdef inline int _digit(char character) noexcept:
    """Of a number in hexadecimal; -1 if it is none."""
    if b"0" <= character <= b"9":
        return character - 48
    if b"a" <= character <= b"f":
        return character - 87
    return -1


cdef const char *_hexadecimal(const char *at, int most, unsigned long long *number) noexcept:
    """Read a number of at most so many digits; where it ends."""
    cdef int digit
    number[0] = 0
    while most and (digit := _digit(at[0])) >= 0:
        number[0] = number[0] * 16 + digit
        at += 1
        most -= 1
    return at


cdef const char *_plain_number(const char *at, const char *end, char mark, Py_ssize_t *number) noexcept:
    """Read `*n` or `$n` and the end of that line; where the next begins, NULL if it is not a plain one."""
    cdef const char *digits = at + 1
    number[0] = 0
    if end - at < 1 + 1 + NEWLINE or at[0] != mark:
        return NULL
    while digits < end and b"0" <= digits[0] <= b"9" and digits - at <= SHORT_DIGITS:
        number[0] = number[0] * 10 + digits[0] - 48
        digits += 1
    if digits == at + 1 or (at[1] == b"0" and digits > at + 2) or end - digits < NEWLINE:
        return NULL
    if digits[0] != b"\r" or digits[1] != b"\n":
        return NULL
    return digits + NEWLINE


cdef list _plain_commands(const char *at, const char *end, bytes name):
    """The commands of a payload if they are plain arrays of plain strings, else None. `name` is the likely command."""
    cdef list commands = [], argv
    cdef Py_ssize_t count, size, place
    cdef bytes argument
    while at < end:
        at = _plain_number(at, end, b"*", &count)
        if at is NULL or not 0 < count <= MOST_ARGUMENTS:
            return None
        argv = [None] * count
        for place in range(count):
            at = _plain_number(at, end, b"$", &size)
            if at is NULL or end - at < size + NEWLINE or at[size] != b"\r" or at[size + 1] != b"\n":
                return None
            if place == 0 and size == PyBytes_GET_SIZE(name) and not memcmp(at, PyBytes_AS_STRING(name), size):
                argument = name  # its hash is known
            else:
                argument = PyBytes_FromStringAndSize(at, size)
                if place == 0 and size < LONGEST_NAME:
                    name = argument
            argv[place] = argument
            at += size + NEWLINE
        commands.append(argv)
    return commands


def frames_in(bytes data not None, Py_ssize_t at, list found not None):
    """See frames.frames_in."""
    cdef const char *start = PyBytes_AS_STRING(data)
    cdef const char *end = start + PyBytes_GET_SIZE(data)
    cdef const char *header
    cdef const char *digits
    cdef const char *payload
    cdef unsigned long long length, checksum, own_checksum
    cdef bint logged
    cdef bytes name = b""
    cdef Py_ssize_t payload_at, payload_end
    view = memoryview(data)
    while True:
        header = start + at
        if end - header < SHORTEST_HEADER + LONGEST_LENGTH:  # near the end of what came: a header that may be cut
            whole = _header_at(data, at)
            if whole is None:
                return at, 0
            payload_at, payload_end, expected, logged = whole
        else:
            logged = not memcmp(header, b"#SUM ", NAME)
            digits = _hexadecimal(header + NAME, LONGEST_LENGTH, &length)
            payload = _hexadecimal(digits + 1, CHECKSUM, &checksum)
            if (
                (not logged and memcmp(header, b"#OUT ", NAME)) or digits == header + NAME or digits[0] != b" "
                or payload != digits + 1 + CHECKSUM or payload[0] != b" "
            ):
                if _header_at(data, at) is not None:  # it says what is wrong; None: the rest of the header may come
                    raise AssertionError("a header that only one of two readers understands")
                return at, 0
            digits = payload
            payload = _hexadecimal(digits + 1, CHECKSUM, &own_checksum)
            if (
                payload != digits + 1 + CHECKSUM or payload[0] != b"\r" or payload[1] != b"\n"
                or _crc32(data[at + NAME : digits - start]) != own_checksum
            ):
                if _header_at(data, at) is not None:
                    raise AssertionError("a header that only one of two readers understands")
                return at, 0
            payload_at = payload + NEWLINE - start
            payload_end = payload_at + <Py_ssize_t>length
            expected = checksum
        if payload_end > PyBytes_GET_SIZE(data):
            return at, payload_end - at
        if _crc32(view[payload_at:payload_end]) != expected:
            raise _damaged()
        commands = _plain_commands(start + payload_at, start + payload_end, name)
        if commands is None:
            commands = _commands_of(_feed, 0, data[payload_at:payload_end])
        elif commands:
            name = (<list>(<list>commands)[0])[0]
        found.append(_new(_Frame, (view[at:payload_end], commands, logged)))
        at = payload_end
