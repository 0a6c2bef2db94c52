# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of requests.RequestReader; that file says what it does, and the same tests run on both.

It parses the whole request grammar itself; the pure one leaves part of it to hiredis. Arguments are copied once, out of
the chunk they came in. An argument that is cut is gathered in bytes that grow as it comes, so a header that claims half
a gigabyte reserves nothing. The body of an argument is not searched. Bytes that break the protocol stay where they are,
and the error is raised each time they are parsed: the inner loop looks ahead.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.string cimport memchr, memcmp, memcpy

from penstock.protocol.errors import ProtocolError
from penstock.protocol import grammar

cdef extern from "Python.h":
    int _PyBytes_Resize(PyObject **bytes, Py_ssize_t size) except -1

cdef object _ProtocolError = ProtocolError
cdef object _MORE = grammar.MORE
cdef object _inline_command = grammar.inline_command
cdef long long _MAX_BULK = grammar.MAX_BULK
cdef long long _MAX_ARGUMENTS = grammar.MAX_ARGUMENTS
cdef Py_ssize_t _MAX_INLINE = grammar.MAX_INLINE
cdef enum:
    FIRST_ROOM = 1 << 17  # bytes an argument that is cut gets at once; more as it fills
    AMPLE_ROOM = 1 << 22  # bytes up to which the room is made four times as large, afterwards twice
    FIRST_ARGUMENTS = 1024  # likewise, of a command
    NEWLINE = 2
    SHORT_DIGITS = 7  # of a length that is read the quick way
    SHORT_HEADER = 10  # bytes of such a header at most
    LONGEST_NAME = 32
    AN_ARGUMENT = 48  # bytes that an argument takes beside its own, with its place in the list
    # Bytes held after which the connection looks at its limits; an argument that lacks so many is received by itself.
    MUCH = 1 << 16


cdef class RequestReader:
    """See requests.RequestReader."""

    def __init__(self, long long max_bulk=_MAX_BULK, long long max_arguments=_MAX_ARGUMENTS):
        self._data = b""
        self._later = []
        self._argv = []
        self._name = b""
        self._max_bulk = max_bulk
        self._max_arguments = max_arguments

    def limit(self, long long max_bulk, long long max_arguments=_MAX_ARGUMENTS):
        self._max_bulk, self._max_arguments = max_bulk, max_arguments

    @property
    def backlog(self):
        return PyBytes_GET_SIZE(self._data) - self._at + self._later_size + self._whole + self._got

    def commands_ran(self):
        return

    def feed(self, bytes data not None):
        self.push(data)

    cdef int push(self, bytes data) except -1:
        if self._at == PyBytes_GET_SIZE(self._data) and not self._later_size:
            self._data = data
            self._at = 0
        else:
            self._later.append(data)
            self._later_size += PyBytes_GET_SIZE(data)
        return 0

    cdef bint holds_more(self):
        return self._at < PyBytes_GET_SIZE(self._data) or self._later_size > 0

    cdef bint holds_much(self):
        return self._later_size > MUCH or self._got > MUCH or self._whole > MUCH

    cdef int places(self, iovec *where) except -1:
        """Where what is missing of a long argument may be put, in one or two places; 0 if there is no such argument."""
        cdef Py_ssize_t room
        if self._bulk is None or self._size - self._got < MUCH:
            return 0
        if self._got == PyBytes_GET_SIZE(self._bulk):
            self._grow((4 if self._got < AMPLE_ROOM else 2) * self._got)
        room = PyBytes_GET_SIZE(self._bulk)
        where[0].iov_base = PyBytes_AS_STRING(self._bulk) + self._got
        where[0].iov_len = room - self._got
        where[1].iov_base = self._newline
        where[1].iov_len = NEWLINE
        return 2 if room == self._size else 1

    cdef bint received(self, Py_ssize_t size):
        """So many bytes were put there; whether the argument is whole."""
        self._got += size
        return self._got == self._size + NEWLINE

    def take(self):
        return self.next()

    def more(self):
        return False

    def odd(self, argv):
        raise AssertionError(f"{argv!r} was not read here")

    cdef object next(self):
        cdef long long number
        while True:
            if not self._missing:
                if self._at == PyBytes_GET_SIZE(self._data) and not self._join():
                    return _MORE
                if PyBytes_AS_STRING(self._data)[self._at] != b"*":
                    argv = self._inline()
                    if argv:
                        return argv
                    continue
                if not self._header(b"*", self._max_arguments, &number):
                    return _MORE
                if number <= 0:
                    continue
                self._missing = number
                self._argv = PyList_New(number) if number <= FIRST_ARGUMENTS else []
                self._filled = self._whole = 0
            if self._bulk is None:
                self._take_whole()
            while self._missing:
                if self._bulk is None:
                    if not self._header(b"$", self._max_bulk, &number):
                        return _MORE
                    self._begin(number)
                if self._bulk is not None and not self._go_on():
                    return _MORE
            argv, self._argv = self._argv, None
            self._whole = 0
            return argv

    cdef int _take_whole(self) except -1:
        """Take the arguments that are here and need no second look; the rest is for those who know every case."""
        cdef const char *at = PyBytes_AS_STRING(self._data) + self._at
        cdef const char *end = PyBytes_AS_STRING(self._data) + PyBytes_GET_SIZE(self._data)
        cdef const char *digits
        cdef Py_ssize_t size
        while self._missing and end - at > SHORT_HEADER and at[0] == b"$":
            digits = at + 1
            size = 0
            while b"0" <= digits[0] <= b"9" and digits - at <= SHORT_DIGITS:
                size = size * 10 + digits[0] - 48
                digits += 1
            if digits[0] != b"\r" or digits == at + 1 or (at[1] == b"0" and digits > at + 2):
                break
            if size > self._max_bulk or end - digits < size + 2 * NEWLINE:
                break
            self._put_copy(digits + NEWLINE, size)
            at = digits + size + 2 * NEWLINE
        self._at = at - PyBytes_AS_STRING(self._data)
        return 0

    cdef bint _join(self) except -1:
        """Put what came later behind what is left; whether there was anything."""
        if not self._later:
            return False
        self._data = b"".join([self._data[self._at :], *self._later])
        self._at = self._later_size = 0
        self._later = []
        return True

    cdef bint _header(self, char mark, long long limit, long long *found) except -1:
        """Find the number of a `*n` or `$n` line; whether the line is whole."""
        cdef const char *at
        cdef const char *end
        cdef const char *stop
        cdef long long number = 0
        cdef bint negative = False, valid
        while True:
            at = PyBytes_AS_STRING(self._data) + self._at
            end = PyBytes_AS_STRING(self._data) + PyBytes_GET_SIZE(self._data)
            if at < end:
                if at[0] != mark:
                    raise _ProtocolError(f"Protocol error: expected '{chr(mark)}', got '{chr(<unsigned char>at[0])}'")
                stop = <const char *>memchr(at, b"\r", min(end - at, _MAX_INLINE))
                if stop is not NULL and stop + 1 < end:
                    break
                if end - at >= _MAX_INLINE:
                    raise _ProtocolError(f"Protocol error: too big {'mbulk' if mark == b'*' else 'bulk'} count string")
            if not self._join():
                return False
        at += 1
        if at < stop and at[0] == b"-":
            negative = True
            at += 1
        # As Redis reads numbers: no leading zero, and no minus before zero.
        valid = 0 < stop - at <= 18 and (at[0] != b"0" or (stop - at == 1 and not negative))
        while valid and at < stop:
            valid = b"0" <= at[0] <= b"9"
            number = number * 10 + at[0] - 48
            at += 1
        if negative:
            number = -number
        if not valid or number > limit or (mark == b"$" and number < 0):
            self._refuse(mark, limit, number if valid else -1)
        self._at = stop + NEWLINE - PyBytes_AS_STRING(self._data)
        found[0] = number
        return True

    def _refuse(self, char mark, long long limit, long long number):
        what = "multibulk length" if mark == b"*" else "bulk length"
        ordinary = _MAX_ARGUMENTS if mark == b"*" else _MAX_BULK
        narrow = self._max_arguments < _MAX_ARGUMENTS and limit < number <= ordinary
        raise _ProtocolError(f"Protocol error: {'unauthenticated' if narrow else 'invalid'} {what}")

    cdef object _inline(self):
        """The next line's words; None for a line without any. MORE while it is not whole."""
        cdef const char *at
        cdef const char *newline
        cdef Py_ssize_t left
        while True:
            at = PyBytes_AS_STRING(self._data) + self._at
            left = PyBytes_GET_SIZE(self._data) - self._at
            newline = <const char *>memchr(at, b"\n", left)
            if newline is not NULL:
                break
            if left > _MAX_INLINE:
                raise _ProtocolError("Protocol error: too big inline request")
            if not self._join():
                return _MORE
        argv = _inline_command(PyBytes_FromStringAndSize(at, newline - at))
        self._at += newline + 1 - at
        return argv

    cdef int _begin(self, Py_ssize_t size) except -1:
        """An argument of this size follows: take it if it is here, or begin to gather it."""
        cdef const char *at = PyBytes_AS_STRING(self._data) + self._at
        cdef Py_ssize_t left = PyBytes_GET_SIZE(self._data) - self._at
        if left >= size + NEWLINE:
            self._at += size + NEWLINE
            return self._put_copy(at, size)
        self._size = size
        self._got = 0
        self._bulk = PyBytes_FromStringAndSize(NULL, min(size, FIRST_ROOM))
        return 0

    cdef bint _go_on(self) except -1:
        """Gather what came of the argument; whether it is whole."""
        cdef Py_ssize_t share, room
        while True:
            share = min(PyBytes_GET_SIZE(self._data) - self._at, self._size + NEWLINE - self._got)
            room = PyBytes_GET_SIZE(self._bulk)
            if self._got + share > room and room < self._size:
                self._grow(max(2 * room, self._got + share))
            if self._got < self._size:
                memcpy(
                    PyBytes_AS_STRING(self._bulk) + self._got,
                    PyBytes_AS_STRING(self._data) + self._at,
                    min(share, self._size - self._got),
                )
            self._at += share
            self._got += share
            if self._got == self._size + NEWLINE:
                self._got = 0
                argument, self._bulk = self._bulk, None
                self._put(argument)
                return True
            if not self._join():
                return False

    cdef int _grow(self, Py_ssize_t size) except -1:
        """Make room for so much of the argument, if it is that long."""
        cdef PyObject *moving = <PyObject *>self._bulk  # which nothing else may refer to while it moves
        Py_INCREF(self._bulk)
        self._bulk = None
        _PyBytes_Resize(&moving, min(self._size, size))
        self._bulk = <object>moving
        Py_DECREF(<object>moving)
        return 0

    cdef int _put_copy(self, const char *at, Py_ssize_t size) except -1:
        cdef bytes argument
        if (
            self._filled == 0
            and size == PyBytes_GET_SIZE(self._name)
            and not memcmp(at, PyBytes_AS_STRING(self._name), size)
        ):
            return self._put(self._name)  # most clients send the same command again, and its hash is known
        argument = PyBytes_FromStringAndSize(at, size)
        if self._filled == 0 and size < LONGEST_NAME:
            self._name = argument
        return self._put(argument)

    cdef int _put(self, bytes argument) except -1:
        if self._missing + self._filled <= FIRST_ARGUMENTS:
            Py_INCREF(argument)
            PyList_SET_ITEM(self._argv, self._filled, argument)
        else:
            self._argv.append(argument)
        self._filled += 1
        self._missing -= 1
        self._whole += PyBytes_GET_SIZE(argument) + AN_ARGUMENT
        return 0
