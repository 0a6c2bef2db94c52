# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of inner_loop.InnerLoop; that file says what it does, and the same tests run on both.

It takes the places of counters and of the fields of a FastCommand, and the sizes of buffers, from their definitions.

Replies are written into one growing block of memory and become one bytes object at the end.
"""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Contains, PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLong, PyLong_CheckExact
from cpython.object cimport PyObject
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove
from posix.unistd cimport write
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec

from penstock.protocol._requests cimport RequestReader, iovec

from penstock.engine.clock import Clock
from penstock.engine.observe import histograms, statistics
from penstock.engine.observe.slow_log import QUICKEST_TIMED
from penstock.engine.declarations import LONG_ARGUMENT
from penstock.engine.fast_path import FastCommand
from penstock.engine.concurrency.workers import LongWay
from penstock.engine.session import Unconfirmed
from penstock.protocol.errors import ProtocolError, ReplyError, wrong_arity
from penstock.protocol.grammar import MORE
from penstock.protocol.resp import OK, RawPieces, encode
from penstock.server import buffer_sizes

cdef extern from "sys/uio.h":
    ssize_t readv(int descriptor, const iovec *where, int count) nogil

cdef object _OK = OK
cdef object _encode = encode
cdef object _MORE = MORE
cdef object _ProtocolError = ProtocolError
cdef object _ReplyError = ReplyError
cdef object _LongWay = LongWay
cdef type _RawPieces = RawPieces
cdef type _Unconfirmed = Unconfirmed
cdef dict _NO_COMMANDS = {}
cdef enum:
    STACK = 8192
    LONGEST_RUN = 1000
    GULP = 1048576
    WHOLE_READ = 256000  # as in inner_loop

cdef Py_ssize_t LONGEST_TOGETHER = LONG_ARGUMENT
cdef Py_ssize_t RELIEF = buffer_sizes.RELIEF
cdef Py_ssize_t WORTH_COPYING = buffer_sizes.WORTH_COPYING

# places in the tally of everything
cdef Py_ssize_t COMMANDS = statistics.COMMANDS
cdef Py_ssize_t INPUT_BYTES = statistics.INPUT_BYTES
cdef Py_ssize_t OUTPUT_BYTES = statistics.OUTPUT_BYTES
cdef Py_ssize_t HITS = statistics.HITS
cdef Py_ssize_t MISSES = statistics.MISSES

# places in the counters of a command
cdef Py_ssize_t CALLS = statistics.CALLS
cdef Py_ssize_t NANOSECONDS = statistics.NANOSECONDS
cdef Py_ssize_t UNTIMED = statistics.UNTIMED
cdef Py_ssize_t REJECTED = statistics.REJECTED
cdef Py_ssize_t FAILED = statistics.FAILED
cdef Py_ssize_t BUCKETS = statistics.BUCKETS
cdef Py_ssize_t LAST_BUCKET = statistics.BUCKETS + histograms.BOUNDED
cdef Py_ssize_t LEAST_BITS = histograms.LEAST_BITS

# places in a FastCommand, which is read as the tuple that it is
_place = FastCommand._fields.index
cdef Py_ssize_t COMMAND = _place("command")
cdef Py_ssize_t HANDLER = _place("handler")
cdef Py_ssize_t LOW = _place("low")
cdef Py_ssize_t HIGH = _place("high")
cdef Py_ssize_t COUNTERS = _place("counters")
cdef Py_ssize_t TOGETHER = _place("together")
cdef Py_ssize_t READS = _place("reads")
cdef Py_ssize_t TIMED = _place("timed")
cdef Py_ssize_t BRIEF = _place("brief")
cdef Py_ssize_t LAST_KEY = _place("last_key")

cdef Py_ssize_t SAMPLE = statistics.SAMPLE
cdef Py_ssize_t MANY_ARGUMENTS = statistics.MANY_ARGUMENTS
cdef long long SLOW = QUICKEST_TIMED * 1000  # nanoseconds; what takes longer may be worth a note


cdef struct Block:
    char *start
    Py_ssize_t used
    Py_ssize_t size
    bint on_heap
    Py_ssize_t unconfirmed  # commands whose replies these are, if all of them are Unconfirmed; else 0


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


cdef int put_piece(Block *block, object piece) except -1:
    """Bytes, or a view of some."""
    cdef Py_buffer view
    PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
    try:
        return put(block, <const char *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


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


cdef inline bint is_short(list argv):
    """Whether the last argument is: see declarations.LONG_ARGUMENT."""
    return PyBytes_GET_SIZE(<object>PyList_GET_ITEM(argv, PyList_GET_SIZE(argv) - 1)) <= LONGEST_TOGETHER


cdef inline bint follows(list argv, list next):
    """Whether the next command is the same one, about the same key, with as many arguments and no long one."""
    return (
        PyList_GET_SIZE(argv) == PyList_GET_SIZE(next)
        and is_short(next)
        and PyList_GET_ITEM(argv, 0) == PyList_GET_ITEM(next, 0)  # the reader gives a name that comes again as it was
        and <bytes>PyList_GET_ITEM(argv, 1) == <bytes>PyList_GET_ITEM(next, 1)
    )


cdef bint touches(dict busy, list argv, Py_ssize_t last):
    """Whether any argument up to the last key is a busy name.

    Arguments behind the last key are left out: their hashes would cost more than everything else here.
    """
    cdef Py_ssize_t at, size = PyList_GET_SIZE(argv)
    for at in range(1, size if last < 0 or last >= size else last + 1):
        if PyDict_Contains(busy, <object>PyList_GET_ITEM(argv, at)):
            return True
    return False


cdef inline long long nanoseconds():
    cdef timespec moment
    clock_gettime(CLOCK_MONOTONIC, &moment)
    return <long long>moment.tv_sec * 1000000000 + moment.tv_nsec


cdef int empty_into(Block *block, list out) except -1:
    if block.used:
        replies = PyBytes_FromStringAndSize(block.start, block.used)
        out.append(_Unconfirmed.of(block.unconfirmed, replies) if block.unconfirmed else replies)
        block.used = block.unconfirmed = 0
    return 0


cdef class InnerLoop:
    """See inner_loop.InnerLoop, and Hooks there for the methods called on self."""

    cdef public object engine, session
    cdef readonly RequestReader reader
    cdef public list out
    cdef public Py_ssize_t ran
    cdef public long long dirty
    cdef object keyspace
    cdef public bint running, held_back
    cdef public int descriptor  # of a plain socket, for writing to it directly; -1 for any other
    cdef public object unsent  # () -> bytes that the transport has not sent yet
    cdef bint direct  # inside data_received, so the socket is certainly open
    cdef object clock, stats, others
    cdef list ready  # changed keys that a client waits for
    cdef dict busy  # the table of engine/concurrency/busy_names.py
    cdef object following  # a command that was taken to see whether it belongs to a run, and did not run yet
    cdef array.array tally  # of stats
    cdef bint real_clock
    cdef long long now  # milliseconds, when it was last looked at

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
        self.tally = engine.stats.tally
        self.keyspace = engine.keyspace
        self.dirty = -1
        self.ready = engine.keyspace.ready
        self.busy = engine.busy_names.table

    def data_received(self, bytes data not None):
        self.tally.data.as_longlongs[INPUT_BYTES] += PyBytes_GET_SIZE(data)
        if self.held_back:
            self.hold(data)
        else:
            self.reader.push(data)
            self.direct = self.descriptor >= 0
            self.run()
            if self.direct:
                self.receive()
                self.direct = False
            if PyBytes_GET_SIZE(data) >= WHOLE_READ:
                self.give_way()

    cdef int receive(self) except -1:
        """Read what has come of a long argument into its place, which spares it the two copies of the transport's way.

        No more than GULP bytes before others have their turn. An end or an error is for the transport to find.
        """
        cdef iovec where[2]
        cdef Py_ssize_t left = GULP
        cdef ssize_t got
        cdef int count = self.reader.places(where), descriptor = self.descriptor
        while count and left > 0 and not self.held_back and not self.session.closing:
            with nogil:
                got = readv(descriptor, where, count)
            if got <= 0:
                break
            left -= got
            self.tally.data.as_longlongs[INPUT_BYTES] += got
            if self.reader.received(got):
                self.run()
            count = self.reader.places(where)
        return 0

    def run(self):
        """See inner_loop.InnerLoop.run."""
        cdef object argv
        cdef timespec moment
        cdef long long now
        if self.real_clock:
            clock_gettime(CLOCK_REALTIME, &moment)
            now = <long long>moment.tv_sec * 1000 + moment.tv_nsec // 1000000
            if now != self.now:
                self.now = now
                self.clock.now = self.session.last_active = now
        else:
            self.session.last_active = self.clock.refresh()
        self.running = True
        self.ran = 0
        self.dirty = self.keyspace.dirty
        try:
            while True:
                argv = self.run_fast()
                if argv is _MORE:
                    break
                self.ran += 1
                if not self.execute(argv):
                    break
        except _ProtocolError as error:
            self.refuse(str(error))
        self.running = False
        if self.out or self.others or self.reader.holds_much():
            self.finish()
        self.dirty = -1

    cdef int send(self, Block *block) except -1:
        """Write to the socket now; what it does not take stays for the transport."""
        cdef ssize_t sent = write(self.descriptor, block.start, block.used)
        if sent > 0:
            self.tally.data.as_longlongs[OUTPUT_BYTES] += sent
            block.used -= sent
            memmove(block.start, block.start + sent, block.used)
        return 0

    def send_directly(self, bytes data not None):
        """See inner_loop.InnerLoop.send_directly."""
        cdef ssize_t sent
        if self.descriptor < 0 or self.unsent():
            return data
        sent = write(self.descriptor, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        if sent <= 0:
            return data
        self.tally.data.as_longlongs[OUTPUT_BYTES] += sent
        return data[sent:]

    cdef list gather(self, list argv):
        """The command and those behind it that may run together with it; the one after them waits in `following`."""
        cdef list run = [argv]
        cdef object following
        try:
            while PyList_GET_SIZE(run) < LONGEST_RUN:
                following = self.reader.next()
                if following is _MORE:
                    break
                if not follows(argv, following):
                    self.following = following
                    break
                run.append(following)
        except _ProtocolError:
            pass  # it is raised again when its turn comes, after the replies to what was whole
        return run

    cdef int time(
        self, long long *counters, object command, list argv, long long took, Py_ssize_t copies, bint alone
    ) except -1:
        """See inner_loop.InnerLoop._time; `copies` ran together."""
        cdef Py_ssize_t place = BUCKETS
        cdef long long rest
        took //= copies
        if not alone:
            copies += counters[UNTIMED]
            counters[UNTIMED] = 0
        counters[NANOSECONDS] += took * copies
        rest = took >> LEAST_BITS
        while rest and place < LAST_BUCKET:
            rest >>= 1
            place += 1
        counters[place] += copies
        if took >= SLOW:
            self.engine.notice(self.session, command, argv, took)
        return 0

    cdef object run_fast(self):
        """See inner_loop.InnerLoop._run_fast."""
        cdef char stack[STACK]
        cdef Block block
        cdef Py_ssize_t count = 0, copies, size
        cdef Py_ssize_t gathered = 0  # bytes of large replies, which are sent from where they are
        cdef Py_ssize_t ran = 0, hits = 0, misses = 0, reads
        cdef long long low, high, number, began
        cdef long long *counters
        cdef bint alone, rejected
        cdef PyObject *found
        cdef object argv, reply, raw, commit
        cdef object session = self.session
        cdef list run
        cdef tuple entry = None
        cdef dict data = None
        cdef RequestReader reader = self.reader
        cdef dict fast = self.engine.fast if session.plain else _NO_COMMANDS
        cdef list ready = self.ready
        cdef dict busy = self.busy
        block.start = stack
        block.used = 0
        block.size = STACK
        block.on_heap = False
        block.unconfirmed = 0
        try:
            while True:
                if self.following is None:
                    argv = reader.next()
                else:
                    argv, self.following = self.following, None
                if argv is _MORE:
                    if self.direct and block.used and not self.out and not self.unsent():
                        commit = self.engine.commit
                        if commit is None or not commit.pending:
                            self.send(&block)
                    return argv
                found = PyDict_GetItem(fast, <object>PyList_GET_ITEM(argv, 0))
                if found is NULL or (busy and touches(busy, argv, (<tuple>found)[LAST_KEY])):
                    return argv
                entry = <tuple>found
                size = PyList_GET_SIZE(argv)
                low, high, reads = entry[LOW], entry[HIGH], entry[READS]
                rejected = size < low or size > high
                if rejected and size > high and <bint>entry[BRIEF]:
                    return argv
                run = None
                if size == low and entry[TOGETHER] is not None and reader.holds_more() and is_short(argv):
                    run = self.gather(argv)
                copies = 1 if run is None else PyList_GET_SIZE(run)
                ran += copies
                counters = (<array.array>entry[COUNTERS]).data.as_longlongs
                alone = size > MANY_ARGUMENTS or <bint>entry[TIMED]
                began = 0
                if alone or counters[CALLS] < SAMPLE or counters[UNTIMED] + copies >= SAMPLE:
                    began = nanoseconds()
                try:
                    if rejected:
                        raise wrong_arity(argv[0].decode().lower())
                    reply = entry[HANDLER](session, argv) if copies == 1 else entry[TOGETHER](session, run)
                    if block.unconfirmed and type(reply) is not _Unconfirmed:
                        empty_into(&block, self.out)
                    if reply is _OK:
                        put(&block, b"+OK\r\n", 5)
                    elif PyBytes_CheckExact(reply):
                        size = PyBytes_GET_SIZE(reply)
                        put_number(&block, b"$", size)
                        if size > WORTH_COPYING:
                            empty_into(&block, self.out)
                            self.out.append(reply)
                            gathered += size
                        else:
                            put(&block, PyBytes_AS_STRING(reply), size)
                        put(&block, b"\r\n", 2)
                    elif PyLong_CheckExact(reply):
                        number = PyLong_AsLongLong(reply)
                        for size in range(copies):
                            put_number(&block, b":", number + size)
                    elif reply is None:
                        if session.protocol == 2:
                            put(&block, b"$-1\r\n", 5)
                        else:
                            put(&block, b"_\r\n", 3)
                    elif type(reply) is _RawPieces:
                        for raw in reply.pieces:
                            size = len(raw)
                            if size > STACK:
                                empty_into(&block, self.out)
                                self.out.append(raw)
                                gathered += size
                            else:
                                put_piece(&block, raw)
                    elif type(reply) is _Unconfirmed:
                        size = PyBytes_GET_SIZE(reply)
                        if not block.unconfirmed:
                            empty_into(&block, self.out)
                        if size > STACK or not (block.used or reader.holds_more()):  # none to join it with
                            empty_into(&block, self.out)
                            self.out.append(reply)
                            gathered += size
                        else:
                            put(&block, PyBytes_AS_STRING(reply), size)
                            block.unconfirmed += <Py_ssize_t>reply.commands
                    else:
                        raw = _encode(reply, session.protocol)
                        put(&block, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))
                except _LongWay:
                    ran -= copies
                    return argv
                except Exception as error:
                    reply = None
                    if block.unconfirmed:
                        empty_into(&block, self.out)
                    if isinstance(error, _ReplyError):
                        counters[REJECTED if rejected else FAILED] += copies
                    for size in range(copies):
                        if isinstance(error, _ReplyError):
                            self.stats.count_error(error)
                            raw = b"-%b\r\n" % error.wire()
                        else:
                            raw = self.fail(argv, error)
                        put(&block, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))
                if not rejected:
                    count += copies
                    counters[CALLS] += copies
                    if began:
                        self.time(counters, entry[COMMAND], argv, nanoseconds() - began, copies, alone)
                    else:
                        counters[UNTIMED] += copies
                    if reads == 1 and PyBytes_CheckExact(reply) and PyBytes_GET_SIZE(reply):
                        hits += 1  # what is not empty was there
                    elif reads:
                        if data is None:
                            data = session.db.data
                        for size in range(1, PyList_GET_SIZE(argv) if reads < 0 else reads + 1):
                            if PyDict_Contains(data, <object>PyList_GET_ITEM(argv, size)):
                                hits += 1
                            else:
                                misses += 1
                if ready:
                    empty_into(&block, self.out)
                    self.engine.blocking.serve()
                if block.used + gathered > RELIEF:
                    gathered = 0
                    empty_into(&block, self.out)
                    self.ran += ran
                    ran = 0
                    self.flush()
                    if self.held_back:
                        return _MORE
        finally:
            empty_into(&block, self.out)
            if entry is not None:
                self.tally.data.as_longlongs[COMMANDS] += count
                self.tally.data.as_longlongs[HITS] += hits
                self.tally.data.as_longlongs[MISSES] += misses
                self.ran += ran
                session.last_command = entry[COMMAND].name
            if block.on_heap:
                free(block.start)
