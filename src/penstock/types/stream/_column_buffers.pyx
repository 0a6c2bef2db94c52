# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled twin of column_buffers.py; that file says what the functions do, and the same tests run on both."""

from cpython cimport array
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t
from libc.string cimport memcpy

import array as _array

cdef array.array _NARROW = _array.array("i")
cdef array.array _WIDE = _array.array("q")


def column_of(list values, bint wide):
    cdef Py_ssize_t row, count = len(values), size = 0
    cdef array.array table
    cdef bytes value, data
    cdef char *at
    for value in values:
        if value is None:
            raise TypeError("a message is bytes")
        size += PyBytes_GET_SIZE(value)
    if size > INT32_MAX and not wide:
        raise OverflowError("32 bits are not enough for so many bytes")
    table = array.clone(_WIDE if wide else _NARROW, count + 1, True)
    data = PyBytes_FromStringAndSize(NULL, size)
    at = PyBytes_AS_STRING(data)
    for row in range(count):
        value = values[row]
        memcpy(at, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        at += PyBytes_GET_SIZE(value)
        if wide:
            table.data.as_longlongs[row + 1] = at - PyBytes_AS_STRING(data)
        else:
            table.data.as_ints[row + 1] = <int>(at - PyBytes_AS_STRING(data))
    return table, data


def counted(int64_t start, Py_ssize_t count):
    cdef Py_ssize_t row
    cdef bytes column
    cdef int64_t *numbers
    if count > 0 and start > INT64_MAX - (count - 1):
        raise OverflowError("an offset does not fit")
    column = PyBytes_FromStringAndSize(NULL, 8 * max(count, 0))
    numbers = <int64_t *>PyBytes_AS_STRING(column)
    for row in range(count):
        numbers[row] = start + row
    return column


def latest(array.array times):
    cdef Py_ssize_t row
    if times.ob_descr.typecode != c"q" or len(times) == 0:
        raise ValueError("there are no times")
    cdef long long newest = times.data.as_longlongs[0]
    for row in range(1, len(times)):
        newest = max(newest, times.data.as_longlongs[row])
    return newest
