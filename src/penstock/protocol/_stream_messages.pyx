# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled twin of stream_messages.py; that file says what the functions do, and the same tests run on both.

Each measures first and then writes: the bytes it makes have exactly the size that they need.
"""

cimport cython
from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int32_t, int64_t
from libc.string cimport memcpy

from penstock.protocol._resp cimport bulk_size, digits, header_size, put_bulk, put_header, put_line_end, put_number

import array as _array

cdef array.array _BEGINS = _array.array("Q")


cdef inline char *put_message(
    char *at, const char *head, int64_t offset, const char *tag, Py_ssize_t tag_size, const char *entry,
    Py_ssize_t entry_size
) noexcept nogil:
    memcpy(at, head, 4)
    return put_bulk(put_bulk(put_header(at + 4, 58, offset), tag, tag_size), entry, entry_size)


cdef inline Py_ssize_t size_of(int64_t offset, Py_ssize_t tag_size, Py_ssize_t entry_size) noexcept nogil:
    return 4 + header_size(offset) + bulk_size(tag_size) + bulk_size(entry_size)


cdef inline Py_ssize_t size_of_pair(int64_t offset, bytes tag, bytes entry) except -1:
    if tag is None or entry is None:
        raise TypeError("a message is bytes")
    return size_of(offset, PyBytes_GET_SIZE(tag), PyBytes_GET_SIZE(entry))


cdef inline char *put_pair(char *at, const char *head, int64_t offset, bytes tag, bytes entry) noexcept:
    return put_message(
        at, head, offset,
        PyBytes_AS_STRING(tag), PyBytes_GET_SIZE(tag),
        PyBytes_AS_STRING(entry), PyBytes_GET_SIZE(entry),
    )


cdef inline unsigned long long magnitude(int64_t number) noexcept nogil:
    return 0 - <unsigned long long>number if number < 0 else <unsigned long long>number


cdef inline Py_ssize_t number_size(int64_t number) noexcept nogil:
    return 3 + (number < 0) + digits(magnitude(number))


cdef inline char *put_signed(char *at, int64_t number) noexcept nogil:
    """A number, a line of its own."""
    at[0] = 58
    if number < 0:
        at += 1
        at[0] = 45
    return put_line_end(put_number(at + 1, magnitude(number)))


def encode_more(bytearray encoded, array.array begins, int64_t start, list tags, list entries, Py_ssize_t end):
    cdef Py_ssize_t first = len(begins) - 1, row, base = PyByteArray_GET_SIZE(encoded), size = base
    cdef char *at
    if not (begins.ob_descr.typecode == c"Q" and first >= 0 and end <= len(tags) and end <= len(entries)):
        raise ValueError("there are fewer messages than that")
    if not 0 <= start <= INT64_MAX - end:
        raise OverflowError("an offset does not fit")
    if end <= first:
        return
    for row in range(first, end):
        size += size_of_pair(start + row, tags[row], entries[row])
    PyByteArray_Resize(encoded, size)
    array.resize_smart(begins, end + 1)
    at = PyByteArray_AS_STRING(encoded) + base
    for row in range(first, end):
        at = put_pair(at, b"*3\r\n", start + row, tags[row], entries[row])
        begins.data.as_ulonglongs[row + 1] = at - PyByteArray_AS_STRING(encoded)


cdef class Table:
    """A binary column: where each value ends, and all of them."""

    cdef Py_buffer ends
    cdef Py_buffer data
    cdef bint has_ends, has_data, wide

    def __cinit__(self, ends, data, bint wide, Py_ssize_t rows):
        PyObject_GetBuffer(ends, &self.ends, PyBUF_SIMPLE)
        self.has_ends = True
        PyObject_GetBuffer(data, &self.data, PyBUF_SIMPLE)
        self.has_data = True
        self.wide = wide
        if self.ends.len < (rows + 1) * (8 if wide else 4):
            raise ValueError("there are fewer messages than that")

    def __dealloc__(self):
        if self.has_ends:
            PyBuffer_Release(&self.ends)
        if self.has_data:
            PyBuffer_Release(&self.data)

    cdef inline int64_t begin(self, Py_ssize_t row) noexcept nogil:
        if self.wide:
            return (<const int64_t *>self.ends.buf)[row]
        return (<const int32_t *>self.ends.buf)[row]

    cdef inline Py_ssize_t size(self, Py_ssize_t row) except -1:
        cdef int64_t begin = self.begin(row), end = self.begin(row + 1)
        if not 0 <= begin <= end <= self.data.len:
            raise ValueError("a table points outside its data")
        return end - begin

    cdef inline const char *value(self, Py_ssize_t row) noexcept nogil:
        return <const char *>self.data.buf + self.begin(row)


@cython.final
cdef class Columns:
    """The rows of a column of tags and one of entries, and their offsets: in a row from `start` on, or listed."""

    cdef Table tags, entries
    cdef array.array known  # keeps `listed` alive
    cdef long long *listed
    cdef int64_t start

    def __cinit__(
        self, int64_t start, array.array offsets, tuple tags, tuple entries, Py_ssize_t first, Py_ssize_t end, bint wide
    ):
        self.start, self.known, self.listed = start, offsets, NULL
        if offsets is not None:
            if offsets.ob_descr.typecode != c"q" or len(offsets) < end:
                raise ValueError("there are fewer offsets than that")
            self.listed = offsets.data.as_longlongs
        if first < 0 or not 0 <= start <= INT64_MAX - end:
            raise OverflowError("an offset does not fit")
        self.tags = Table(tags[0], tags[1], wide, end)
        self.entries = Table(entries[0], entries[1], wide, end)

    cdef inline int64_t offset(self, Py_ssize_t row) noexcept nogil:
        return self.start + row if self.listed is NULL else self.listed[row]

    cdef inline Py_ssize_t size(self, Py_ssize_t row) except -1:
        cdef int64_t offset = self.offset(row)
        if offset < 0:
            raise OverflowError("an offset does not fit")
        return size_of(offset, self.tags.size(row), self.entries.size(row))

    cdef inline char *put(self, char *at, const char *head, Py_ssize_t row) noexcept:
        cdef Table tags = self.tags, entries = self.entries
        return put_message(
            at, head, self.offset(row),
            tags.value(row), tags.begin(row + 1) - tags.begin(row),
            entries.value(row), entries.begin(row + 1) - entries.begin(row),
        )


cdef class Times:
    """A column of 64-bit numbers."""

    cdef Py_buffer numbers
    cdef bint is_held

    def __cinit__(self, numbers, Py_ssize_t rows):
        PyObject_GetBuffer(numbers, &self.numbers, PyBUF_SIMPLE)
        self.is_held = True
        if self.numbers.len < rows * 8:
            raise ValueError("there are fewer messages than that")

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.numbers)

    cdef inline int64_t at(self, Py_ssize_t row) noexcept nogil:
        return (<const int64_t *>self.numbers.buf)[row]


def encode_columns(
    int64_t start, offsets, tuple tag_column, tuple entry_column, Py_ssize_t first, Py_ssize_t end, bint wide
):
    cdef Py_ssize_t row, size = 0
    cdef array.array begins = array.clone(_BEGINS, max(end - first, 0) + 1, False)
    cdef Columns columns
    cdef bytes encoded
    cdef char *at
    begins.data.as_ulonglongs[0] = 0
    if end <= first:
        return b"", begins
    columns = Columns(start, offsets, tag_column, entry_column, first, end, wide)
    for row in range(first, end):
        size += columns.size(row)
    encoded = PyBytes_FromStringAndSize(NULL, size)
    at = PyBytes_AS_STRING(encoded)
    for row in range(first, end):
        at = columns.put(at, b"*3\r\n", row)
        begins.data.as_ulonglongs[row + 1 - first] = at - PyBytes_AS_STRING(encoded)
    return encoded, begins


def encode_leased(int64_t start, times, list tags, list entries, Py_ssize_t first, Py_ssize_t end, int64_t more):
    cdef Py_ssize_t row, size = 0
    cdef Times written
    cdef bytes encoded
    cdef char *at
    if end <= first:
        return b""
    if not (0 <= first and end <= len(tags) and end <= len(entries)):
        raise ValueError("there are fewer messages than that")
    if not 0 <= start <= INT64_MAX - end:
        raise OverflowError("an offset does not fit")
    written = Times(times, end)
    for row in range(first, end):
        size += size_of_pair(start + row, tags[row], entries[row]) + number_size(written.at(row))
    encoded = PyBytes_FromStringAndSize(NULL, size + (end - first) * number_size(more))
    at = PyBytes_AS_STRING(encoded)
    for row in range(first, end):
        at = put_pair(at, b"*5\r\n", start + row, tags[row], entries[row])
        at = put_signed(put_signed(at, written.at(row)), more)
    return encoded


def encode_leased_columns(
    int64_t start,
    offsets,
    times,
    tuple tag_column,
    tuple entry_column,
    Py_ssize_t first,
    Py_ssize_t end,
    bint wide,
    int64_t more,
):
    cdef Py_ssize_t row, size = 0
    cdef Columns columns
    cdef Times written
    cdef bytes encoded
    cdef char *at
    if end <= first:
        return b""
    columns = Columns(start, offsets, tag_column, entry_column, first, end, wide)
    written = Times(times, end)
    for row in range(first, end):
        size += columns.size(row) + number_size(written.at(row))
    encoded = PyBytes_FromStringAndSize(NULL, size + (end - first) * number_size(more))
    at = PyBytes_AS_STRING(encoded)
    for row in range(first, end):
        at = put_signed(put_signed(columns.put(at, b"*5\r\n", row), written.at(row)), more)
    return encoded
