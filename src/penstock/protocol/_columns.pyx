# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of columns.py; that file says what it does, and the same tests run on both.

Every place in a table is checked against the data before anything is read by it: a wrong one gives an error,
never memory outside of the data. A row is measured first, so that its bytes object has the exact size.
"""

from array import array

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc
from libc.string cimport memchr

from penstock.protocol._resp cimport bulk_size, header_size, put, put_bulk, put_header
from penstock.protocol.slots import SLOTS

cdef enum:
    LAST_SLOT = 16383  # SLOTS - 1; asserted below

assert SLOTS == LAST_SLOT + 1

cdef unsigned short[256] _crc_of_byte


cdef void _prepare() noexcept:
    """The remainders of CRC-16 (XMODEM) for each byte."""
    cdef unsigned int byte, crc, bit
    for byte in range(256):
        crc = byte << 8
        for bit in range(8):
            crc = (crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1
        _crc_of_byte[byte] = crc & 0xFFFF


_prepare()


cdef struct View:
    # A column, its head (the field's name, on the wire) and how many words a value adds.
    const int *table
    const char *data
    const unsigned char *present
    const char *head
    Py_ssize_t head_size
    Py_ssize_t words


cdef class _Viewed:
    """Keeps the memory of a column, checked, for as long as it is read."""

    cdef const int[:] table
    cdef const unsigned char[:] data
    cdef const unsigned char[:] present
    cdef bytes head
    cdef Py_ssize_t rows

    def __init__(self, column, bytes head):
        cdef Py_ssize_t row, size
        self.table = column[0]
        self.data = column[1]
        self.head = head
        self.rows = self.table.shape[0] - 1
        size = self.data.shape[0]
        if self.rows < 0 or self.table[0] < 0:
            raise ValueError("a table of places needs one more than there are rows, from 0 on")
        for row in range(self.rows):
            if self.table[row + 1] < self.table[row]:
                raise ValueError(f"row {row} ends before it begins")
        if self.table[self.rows] > size:
            raise ValueError("a value ends beyond the data")
        if column[2] is not None:
            self.present = column[2]
            if self.present.shape[0] < self.rows:
                raise ValueError("nulls are not told of every row")

    cdef View view(self, Py_ssize_t words):
        cdef View view
        view.table = &self.table[0]
        view.data = <const char *> &self.data[0] if self.data.shape[0] else NULL
        view.present = &self.present[0] if self.present is not None and self.rows else NULL
        view.head = PyBytes_AS_STRING(self.head)
        view.head_size = PyBytes_GET_SIZE(self.head)
        view.words = words
        return view


cdef bytes _bulk(bytes word):
    return b"$%d\r\n%b\r\n" % (len(word), word)


def pack_rows(bytes name not None, keys, fields=(), tail=()):
    """See columns.pack_rows."""
    cdef bytes head = _bulk(name)
    cdef bytes end = b"".join([_bulk(word) for word in tail])
    cdef _Viewed key_column = _Viewed(keys, b"")
    cdef list columns = [_Viewed(column, b"" if word is None else _bulk(word)) for word, column in fields]
    cdef Py_ssize_t count = len(columns), rows = key_column.rows, fixed = 2 + len(tail), row, at, words, size
    cdef Py_ssize_t head_size = PyBytes_GET_SIZE(head), end_size = PyBytes_GET_SIZE(end)
    cdef const char *head_data = PyBytes_AS_STRING(head)
    cdef const char *end_data = PyBytes_AS_STRING(end)
    cdef View key = key_column.view(1)
    cdef View *views
    cdef View *view
    cdef char *out
    cdef bytes command
    cdef list packed = []
    for viewed in columns:
        if (<_Viewed> viewed).rows != rows:
            raise ValueError("a field has more rows, or fewer, than there are keys")
    views = <View *> malloc((count + 1) * sizeof(View))
    if views == NULL:
        raise MemoryError
    try:
        for at in range(count):
            views[at] = (<_Viewed> columns[at]).view(1 if fields[at][0] is None else 2)
        for row in range(rows):
            if key.present != NULL and not key.present[row]:
                raise ValueError(f"row {row} has no key")
            words = fixed
            size = head_size + end_size + bulk_size(key.table[row + 1] - key.table[row])
            for at in range(count):
                view = &views[at]
                if view.present == NULL or view.present[row]:
                    words += view.words
                    size += view.head_size + bulk_size(view.table[row + 1] - view.table[row])
            if count and words == fixed:
                packed.append(None)
                continue
            command = PyBytes_FromStringAndSize(NULL, size + header_size(words))
            out = put_header(PyBytes_AS_STRING(command), 42, words)
            out = put(out, head_data, head_size)
            out = put_bulk(out, key.data + key.table[row], key.table[row + 1] - key.table[row])
            for at in range(count):
                view = &views[at]
                if view.present == NULL or view.present[row]:
                    out = put(out, view.head, view.head_size)
                    out = put_bulk(out, view.data + view.table[row], view.table[row + 1] - view.table[row])
            put(out, end_data, end_size)
            packed.append(command)
    finally:
        free(views)
    return packed


cdef int _slot(const unsigned char *key, Py_ssize_t size) noexcept nogil:
    cdef const unsigned char *opened
    cdef const unsigned char *closed
    cdef unsigned int crc = 0
    cdef Py_ssize_t at
    opened = <const unsigned char *> memchr(key, 123, size) if size else NULL
    if opened != NULL:
        closed = <const unsigned char *> memchr(opened + 1, 125, size - (opened + 1 - key))
        if closed != NULL and closed > opened + 1:
            size = closed - opened - 1
            key = opened + 1
    for at in range(size):
        crc = ((crc << 8) & 0xFFFF) ^ _crc_of_byte[(crc >> 8) ^ key[at]]
    return crc & LAST_SLOT


def column_slots(keys):
    """See columns.column_slots."""
    cdef _Viewed column = _Viewed(keys, b"")
    cdef View view = column.view(1)
    cdef Py_ssize_t row, rows = column.rows
    slots = array("i", bytes(4 * rows))
    cdef int[:] found = slots
    for row in range(rows):
        found[row] = _slot(<const unsigned char *> view.data + view.table[row], view.table[row + 1] - view.table[row])
    return slots
