"""What compiled code writes RESP with: sizes first, then bytes into memory that is known to be large enough."""

from libc.string cimport memcpy


cdef inline Py_ssize_t digits(unsigned long long number) noexcept nogil:
    cdef Py_ssize_t count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


cdef inline char *put_number(char *at, unsigned long long number) noexcept nogil:
    cdef Py_ssize_t count = digits(number), place
    for place in range(count - 1, -1, -1):
        at[place] = 48 + number % 10
        number //= 10
    return at + count


cdef inline char *put_line_end(char *at) noexcept nogil:
    at[0] = 13
    at[1] = 10
    return at + 2


cdef inline Py_ssize_t header_size(Py_ssize_t number) noexcept nogil:
    return digits(number) + 3


cdef inline char *put_header(char *at, char kind, Py_ssize_t number) noexcept nogil:
    """`*3` or `$5`, a line of its own."""
    at[0] = kind
    return put_line_end(put_number(at + 1, number))


cdef inline char *put(char *at, const char *data, Py_ssize_t size) noexcept nogil:
    if size:
        memcpy(at, data, size)
    return at + size


cdef inline Py_ssize_t bulk_size(Py_ssize_t size) noexcept nogil:
    return size + header_size(size) + 2


cdef inline char *put_bulk(char *at, const char *data, Py_ssize_t size) noexcept nogil:
    return put_line_end(put(put_header(at, 36, size), data, size))
