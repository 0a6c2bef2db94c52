# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of tuples.py; that file says what it does, and the same tests run on both.

Commands are measured first, so that their bytes object has the exact size and nothing is copied twice. They are tuples
of immutable values, so no other thread can make one longer between the measuring and the writing.
"""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow

from penstock.protocol._resp cimport bulk_size, digits, header_size, put, put_bulk, put_header, put_line_end, put_number

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
    """Bytes that a command takes on the wire; 0 if it needs a closer look.

    The bytes of a word that is no bytes object are made here, and put into `made`.
    """
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


cdef Py_ssize_t _head(const char *at, Py_ssize_t size, Py_ssize_t *words) except -1:
    """How long the first line of a command is, and how many words follow."""
    cdef Py_ssize_t place = 1, count = 0
    while place < size and 48 <= at[place] <= 57 and place < 12:
        count = count * 10 + at[place] - 48
        place += 1
    if place == 1 or place + 1 >= size or at[0] != 42 or at[place] != 13:
        raise ValueError("the lengths are not those of the commands")
    words[0] = count
    return place + 2


def number_packed(
    bytes data not None, lengths, bytes chosen not None, bytes before not None, long long first, bytes after not None
):
    """See tuples.number_packed."""
    cdef unsigned long long[:] old = lengths if isinstance(lengths, array) else array("Q", lengths)
    cdef Py_ssize_t count = old.shape[0], index, head, words, total = 0, place = 0, all_of_it = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t before_size = PyBytes_GET_SIZE(before), after_size = PyBytes_GET_SIZE(after)
    cdef const char *marks = PyBytes_AS_STRING(chosen)
    cdef const char *at = PyBytes_AS_STRING(data)
    cdef long long number = first
    cdef char *out
    made = array("Q", bytes(8 * count))
    cdef unsigned long long[:] new = made
    if PyBytes_GET_SIZE(chosen) != count:
        raise ValueError("the lengths are not those of the commands")
    for index in range(count):
        if old[index] > <unsigned long long> (all_of_it - place):
            raise ValueError("the lengths are not those of the commands")
        new[index] = old[index]
        if marks[index]:
            head = _head(at + place, old[index], &words)
            new[index] += header_size(words + 4) - head + before_size + bulk_size(digits(number)) + after_size
            number += 1
        place += old[index]
        total += new[index]
    if place != all_of_it:
        raise ValueError("the lengths are not those of the commands")
    numbered = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(numbered)
    for index in range(count):
        if marks[index]:
            head = _head(at, old[index], &words)
            out = put(put_header(out, 42, words + 4), PyBytes_AS_STRING(before), before_size)
            out = put(_put_number(out, first), PyBytes_AS_STRING(after), after_size)
            out = put(out, at + head, old[index] - head)
            first += 1
        else:
            out = put(out, at, old[index])
        at += old[index]
    return numbered, made
