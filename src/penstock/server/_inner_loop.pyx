# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of inner_loop.InnerLoop; that file says what it does, and the same tests run on both.

Replies are written into one growing block of memory and become one bytes object at the end.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Contains, PyDict_GetItem
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLong, PyLong_CheckExact
from cpython.object cimport PyObject
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memchr, memcpy, memmove
from posix.unistd cimport write
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from penstock.engine.clock import Clock
from penstock.engine.workers import LongWay
from penstock.protocol.errors import ProtocolError, ReplyError, wrong_arity
from penstock.protocol.requests import MORE
from penstock.protocol.resp import OK, encode

cdef object _OK = OK
cdef object _encode = encode
cdef object _MORE = MORE
cdef object _ProtocolError = ProtocolError
cdef object _ReplyError = ReplyError
cdef object _LongWay = LongWay
cdef dict _NO_COMMANDS = {}
cdef enum:
    STACK = 8192
    SETTLE = 65536
    RELIEF = 262144


cdef struct Block:
    char *start
    Py_ssize_t used
    Py_ssize_t size
    bint on_heap


cdef int grow(Block *block, Py_ssize_t more) except -1:
    cdef Py_ssize_t size = block.size * 2
    cdef char *bigger
    while size < block.used + more:
        size *= 2
    if block.on_heap:
        bigger = <char *>realloc(block.start, size)
    else:
        bigger = <char *>malloc(size)
    if bigger is NULL:
        raise MemoryError
    if not block.on_heap:
        memcpy(bigger, block.start, block.used)
    block.start = bigger
    block.size = size
    block.on_heap = True
    return 0


cdef inline int put(Block *block, const char *data, Py_ssize_t size) except -1:
    if block.used + size > block.size:
        grow(block, size)
    memcpy(block.start + block.used, data, size)
    block.used += size
    return 0


cdef int put_number(Block *block, char mark, long long number) except -1:
    """A line such as `:12` or `$3`."""
    cdef char digits[24]
    cdef int at = 24
    cdef bint negative = number < 0
    cdef unsigned long long rest = <unsigned long long>(-(number + 1)) + 1 if negative else <unsigned long long>number
    at -= 1
    digits[at] = b"\n"
    at -= 1
    digits[at] = b"\r"
    while True:
        at -= 1
        digits[at] = 48 + <char>(rest % 10)
        rest //= 10
        if rest == 0:
            break
    if negative:
        at -= 1
        digits[at] = b"-"
    at -= 1
    digits[at] = mark
    return put(block, digits + at, 24 - at)


cdef bint is_command(object argv):
    """A list of bytes, not empty."""
    cdef Py_ssize_t at, size
    if not PyList_CheckExact(argv):
        return False
    size = PyList_GET_SIZE(argv)
    for at in range(size):
        if not PyBytes_CheckExact(<object>PyList_GET_ITEM(argv, at)):
            return False
    return size > 0


cdef bint touches(dict locked, list argv):
    """Whether any argument is the name of a locked key."""
    cdef Py_ssize_t at
    for at in range(1, PyList_GET_SIZE(argv)):
        if PyDict_Contains(locked, <object>PyList_GET_ITEM(argv, at)):
            return True
    return False


cdef int empty_into(Block *block, list out) except -1:
    if block.used:
        out.append(PyBytes_FromStringAndSize(block.start, block.used))
        block.used = 0
    return 0


cdef const char *ALIEN = b"~>|%"


cdef bint has_giant_header(const char *data, Py_ssize_t size):
    """Whether a star with seven digits behind it is somewhere in the data; requests.py says why that matters."""
    cdef const char *end = data + size
    cdef const char *at = data
    cdef int digits
    while True:
        at = <const char *>memchr(at, b"*", end - at)
        if at is NULL:
            return False
        at += 1
        digits = 0
        while at < end and b"0" <= at[0] <= b"9":
            at += 1
            digits += 1
        if digits >= 7:
            return True


cdef bint has_alien_header(const char *data, Py_ssize_t size):
    """Whether a line starts like a set, a push, an attribute or a map; requests.py says why that matters too."""
    cdef const char *end = data + size
    cdef const char *at
    cdef int number
    for number in range(4):
        at = data
        while True:
            at = <const char *>memchr(at, ALIEN[number], end - at)
            if at is NULL:
                break
            at += 1
            if (at == data + 1 or (at - 2)[0] == b"\n") and at < end and b"0" <= at[0] <= b"9":
                return True
    return False


cdef class InnerLoop:
    """See inner_loop.InnerLoop, and Hooks there for the methods called on self."""

    cdef public object engine, reader, session
    cdef public list out
    cdef public Py_ssize_t ran
    cdef public bint running, held_back
    cdef public int descriptor  # of a plain socket, for writing to it directly; -1 for any other
    cdef public object unsent  # () -> bytes that the transport has not sent yet
    cdef bint direct  # inside data_received, so the socket is certainly open
    cdef object feed, take, clock, stats, keyspace, others
    cdef dict locked  # names of locked keys
    cdef bint real_clock
    cdef bint quick  # hiredis reads and holds nothing odd: chunks go straight to it
    cdef Py_ssize_t fed  # bytes fed behind the reader's back

    def __init__(self, engine, reader, others):
        self.engine = engine
        self.reader = reader
        self.session = None
        self.out = []
        self.ran = 0
        self.running = False
        self.held_back = False
        self.others = others
        self.descriptor = -1
        self.unsent = int  # called without arguments it gives 0
        self.direct = False
        self.clock = engine.clock
        self.real_clock = type(engine.clock) is Clock
        self.stats = engine.stats
        self.keyspace = engine.keyspace
        self.locked = engine.lock_gate.names
        self.feed = reader.hiredis_feed
        self.take = reader.take
        self.quick = False
        self.fed = 0

    def data_received(self, bytes data not None):
        cdef const char *raw = PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        self.stats.input_bytes += size
        if self.quick and raw[size - 1] == b"\n" and self.fed + size <= SETTLE and not (
            has_giant_header(raw, size) or has_alien_header(raw, size)
        ):
            self.fed += size
            self.feed(data)
        else:
            self.reader.backlog += self.fed
            self.fed = 0
            self.reader.feed(data)
            self.quick = False
        if self.held_back:
            self.hold()
        else:
            self.direct = self.descriptor >= 0
            self.run()
            self.direct = False

    def run(self):
        """See inner_loop.InnerLoop.run."""
        cdef object argv, reader = self.reader
        cdef timespec moment
        cdef object now
        if self.real_clock:
            clock_gettime(CLOCK_REALTIME, &moment)
            now = <long long>moment.tv_sec * 1000 + moment.tv_nsec // 1000000
            self.clock.now = now
        else:
            now = self.clock.refresh()
        self.session.last_active = now
        self.running = True
        self.ran = 0
        try:
            while True:
                if not self.quick:
                    self.take = reader.take
                argv = self.run_fast()
                if argv is _MORE:
                    if self.quick or self.held_back or not reader.more():
                        break
                elif not is_command(argv):
                    reader.odd(argv)
                else:
                    self.ran += 1
                    if not self.execute(argv):
                        break
        except _ProtocolError as error:
            self.refuse(str(error))
        self.running = False
        if not self.quick:
            self.quick = reader.plain
            self.finish()
        elif self.out or self.others:
            self.finish()

    cdef int send(self, Block *block) except -1:
        """Write to the socket now; what it does not take stays for the transport."""
        cdef ssize_t sent = write(self.descriptor, block.start, block.used)
        if sent > 0:
            self.stats.output_bytes += sent
            block.used -= sent
            memmove(block.start, block.start + sent, block.used)
        return 0

    cdef object run_fast(self):
        """See inner_loop.InnerLoop._run_fast."""
        cdef char stack[STACK]
        cdef Block block
        cdef Py_ssize_t count = 0, size
        cdef long long low, high
        cdef PyObject *found
        cdef object argv, reply, raw, commit
        cdef tuple entry
        cdef object take = self.take, session = self.session
        cdef dict fast = self.engine.fast if session.plain else _NO_COMMANDS
        cdef list ready = self.keyspace.ready
        cdef dict locked = self.locked
        block.start = stack
        block.used = 0
        block.size = STACK
        block.on_heap = False
        try:
            while True:
                argv = take()
                if not is_command(argv):
                    if argv is _MORE and self.direct and block.used and not self.out and not self.unsent():
                        commit = self.engine.commit
                        if commit is None or not commit.pending:
                            self.send(&block)
                    return argv
                found = PyDict_GetItem(fast, <object>PyList_GET_ITEM(argv, 0))
                if found is NULL or (locked and touches(locked, argv)):
                    return argv
                entry = <tuple>found
                count += 1
                size = PyList_GET_SIZE(argv)
                low, high = entry[1], entry[2]
                try:
                    if size < low or size > high:
                        raise wrong_arity(argv[0].decode().lower())
                    reply = entry[0](session, argv)
                    if reply is _OK:
                        put(&block, b"+OK\r\n", 5)
                    elif PyBytes_CheckExact(reply):
                        size = PyBytes_GET_SIZE(reply)
                        put_number(&block, b"$", size)
                        put(&block, PyBytes_AS_STRING(reply), size)
                        put(&block, b"\r\n", 2)
                    elif PyLong_CheckExact(reply):
                        put_number(&block, b":", PyLong_AsLongLong(reply))
                    elif reply is None:
                        if session.protocol == 2:
                            put(&block, b"$-1\r\n", 5)
                        else:
                            put(&block, b"_\r\n", 3)
                    else:
                        raw = _encode(reply, session.protocol)
                        put(&block, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))
                except _ReplyError as error:
                    self.stats.count_error(error)
                    raw = b"-%b\r\n" % error.wire()
                    put(&block, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))
                except _LongWay:
                    count -= 1
                    return argv
                except Exception as error:
                    raw = self.fail(argv, error)
                    put(&block, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))
                if ready:
                    empty_into(&block, self.out)
                    self.engine.blocking.serve()
                if block.used > RELIEF:
                    empty_into(&block, self.out)
                    self.flush()
                    if self.held_back:
                        return _MORE
        finally:
            empty_into(&block, self.out)
            if count:
                self.stats.commands += count
                self.ran += count
            if block.on_heap:
                free(block.start)
