# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of tuples.py; that file says what it does, and the same tests run on both.

Commands are measured first, so that their bytes object has the exact size and nothing is copied twice. What is measured and then
written is a tuple of tuples of what cannot change: no other thread can make it longer in between.
"""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow

from penstock.protocol._resp cimport bulk_size, digits, header_size, put_bulk, put_header, put_line_end, put_number

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    void *PyUnicode_DATA(object text)


cdef inline unsigned long long _without_sign(long long number) noexcept nogil:
    return <unsigned long long> 0 - <unsigned long long> number if number < 0 else <unsigned long long> number


cdef inline Py_ssize_t _number_size(long long number) noexcept nogil:
    return digits(_without_sign(number)) + (number < 0)


cdef inline char *_put_number(char *at, long long number) noexcept nogil:
    at = put_header(at, 36, _number_size(number))
    if number < 0:
        at[0] = 45
        at += 1
    return put_line_end(put_number(at, _without_sign(number)))


cdef Py_ssize_t _size(tuple command, list made) except -1:
    """Bytes that a command takes on the wire; 0 if it needs a closer look. A word without ready bytes puts them in `made`."""
    cdef Py_ssize_t size = header_size(len(command))
    cdef long long number
    cdef int overflow = 0
    cdef object word, kind
    cdef bytes text
    for word in command:
        kind = type(word)
        if kind is bytes:
            size += bulk_size(PyBytes_GET_SIZE(word))
        elif kind is str and PyUnicode_IS_COMPACT_ASCII(word):
            size += bulk_size(PyUnicode_GET_LENGTH(word))
        elif kind is int:
            number = PyLong_AsLongLongAndOverflow(word, &overflow)
            if overflow:
                return 0
            size += bulk_size(_number_size(number))
        elif kind is str or kind is float:
            try:
                text = word.encode() if kind is str else repr(word).encode()
            except UnicodeEncodeError:
                return 0
            made.append(text)
            size += bulk_size(PyBytes_GET_SIZE(text))
        else:
            return 0
    return size


cdef char *_put(char *out, tuple command, list made, Py_ssize_t *next_made) except NULL:
    """Write what was measured."""
    cdef int overflow = 0
    cdef object word, kind
    cdef bytes text
    out = put_header(out, 42, len(command))
    for word in command:
        kind = type(word)
        if kind is bytes:
            out = put_bulk(out, PyBytes_AS_STRING(word), PyBytes_GET_SIZE(word))
        elif kind is str and PyUnicode_IS_COMPACT_ASCII(word):
            out = put_bulk(out, <const char *> PyUnicode_DATA(word), PyUnicode_GET_LENGTH(word))
        elif kind is int:
            out = _put_number(out, PyLong_AsLongLongAndOverflow(word, &overflow))
        else:
            text = <bytes> made[next_made[0]]
            next_made[0] += 1
            out = put_bulk(out, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return out


def pack_tuple(tuple words not None):
    """See tuples.pack_tuple."""
    cdef list made = []
    cdef Py_ssize_t size = _size(words, made), next_made = 0
    if not size:
        return None
    data = PyBytes_FromStringAndSize(NULL, size)
    _put(PyBytes_AS_STRING(data), words, made, &next_made)
    return data


def pack_tuples(commands):
    """See tuples.pack_tuples."""
    cdef tuple every = tuple(commands), command
    cdef Py_ssize_t count = len(every), index, size, words = 0, total = 0, next_made = 0
    cdef list made = []
    cdef dict heads = {}
    cdef object head = None
    cdef char *out
    lengths = array("Q", bytes(8 * count))
    cdef unsigned long long[:] found = lengths
    for index in range(count):
        if type(every[index]) is not tuple:
            return None
        command = <tuple> every[index]
        if not len(command):
            return None
        if command[0] is not head:
            head = command[0]
            if type(head) is not str and type(head) is not bytes:
                return None
            heads[head] = command
        size = _size(command, made)
        if not size:
            return None
        found[index] = size
        words += len(command)
        total += size
    data = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(data)
    for index in range(count):
        out = _put(out, <tuple> every[index], made, &next_made)
    return data, lengths, words, heads
