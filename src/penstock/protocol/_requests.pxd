cdef extern from "sys/uio.h":
    struct iovec:
        void *iov_base
        size_t iov_len


cdef class RequestReader:
    cdef bytes _data  # the chunk that is read
    cdef Py_ssize_t _at  # how far
    cdef list _later  # chunks that came before the one in _data was used up
    cdef Py_ssize_t _later_size
    cdef list _argv  # of a command that is not whole yet
    cdef Py_ssize_t _filled  # arguments in it
    cdef Py_ssize_t _missing  # arguments it still wants; 0 between commands
    cdef Py_ssize_t _whole  # bytes that it takes
    cdef object _bulk  # an argument that is not whole yet: bytes with room for some of it
    cdef Py_ssize_t _size  # that it will have
    cdef Py_ssize_t _got  # of them, and of the newline behind them
    cdef long long _max_bulk
    cdef long long _max_arguments
    cdef bytes _name  # of the last command
    cdef char[2] _newline  # where the one behind an argument may be put, which nobody looks at

    cdef object next(self)
    cdef bint holds_more(self)
    cdef bint holds_much(self)
    cdef int places(self, iovec *where) except -1
    cdef bint received(self, Py_ssize_t size)
    cdef int push(self, bytes data) except -1
    cdef int _take_whole(self) except -1
    cdef bint _join(self) except -1
    cdef bint _header(self, char mark, long long limit, long long *found) except -1
    cdef object _inline(self)
    cdef int _begin(self, Py_ssize_t size) except -1
    cdef bint _go_on(self) except -1
    cdef int _grow(self, Py_ssize_t size) except -1
    cdef int _put_copy(self, const char *at, Py_ssize_t size) except -1
    cdef int _put(self, bytes argument) except -1
