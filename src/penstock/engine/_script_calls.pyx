# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of script_calls.direct_call; that file says what it does, and the same tests run on both.

It takes the places of counters and of the fields of a Row from where they are defined.
"""

from cpython cimport array
from cpython.bytes cimport PyBytes_CheckExact
from cpython.dict cimport PyDict_Contains, PyDict_GetItemWithError
from cpython.list cimport PyList_GET_ITEM, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from penstock.engine.concurrency.workers import LongWay
from penstock.engine.observe import statistics
from penstock.engine.observe.slow_log import QUICKEST_TIMED
from penstock.engine.run_handler import CLIENT, run_handler
from penstock.engine.script_calls import EXACT, Row, as_argument, internal_error, rows_of
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import OK

cdef extern from "Python.h":
    bytes PyBytes_FromFormat(const char *format, ...)

cdef object _OK = OK
cdef object _ReplyError = ReplyError
cdef object _LongWay = LongWay
cdef object _as_argument = as_argument

# places in the tally of everything
cdef Py_ssize_t COMMANDS = statistics.COMMANDS
cdef Py_ssize_t HITS = statistics.HITS
cdef Py_ssize_t MISSES = statistics.MISSES

# places in the counters of a command
cdef Py_ssize_t CALLS = statistics.CALLS
cdef Py_ssize_t UNTIMED = statistics.UNTIMED
cdef Py_ssize_t FAILED = statistics.FAILED

# places in a Row, which is read as the tuple that it is
_place = Row._fields.index
cdef Py_ssize_t COMMAND = _place("command")
cdef Py_ssize_t HANDLER = _place("handler")
cdef Py_ssize_t LOW = _place("low")
cdef Py_ssize_t HIGH = _place("high")
cdef Py_ssize_t WRITES = _place("writes")
cdef Py_ssize_t READS_ONE = _place("reads_one")
cdef Py_ssize_t READS_MORE = _place("reads_more")
cdef Py_ssize_t COUNTERS = _place("counters")

cdef Py_ssize_t SAMPLE = statistics.SAMPLE
cdef Py_ssize_t MANY_ARGUMENTS = statistics.MANY_ARGUMENTS
cdef long long SLOW = QUICKEST_TIMED * 1000  # nanoseconds; what takes longer may be worth a note
cdef long long _EXACT = EXACT


cdef inline long long nanoseconds():
    cdef timespec moment
    clock_gettime(CLOCK_MONOTONIC, &moment)
    return <long long>moment.tv_sec * 1000000000 + moment.tv_nsec


cdef list words_of(tuple arguments):
    """The words of a command; the first of the arguments is the version of the protocol."""
    cdef Py_ssize_t place, size = PyTuple_GET_SIZE(arguments)
    cdef long long number
    cdef int overflow = 0
    cdef object word
    cdef list argv = PyList_New(size - 1)
    for place in range(1, size):
        word = <object>PyTuple_GET_ITEM(arguments, place)
        if not PyBytes_CheckExact(word):
            number = PyLong_AsLongLongAndOverflow(word, &overflow) if PyLong_CheckExact(word) else _EXACT
            if not overflow and -_EXACT < number < _EXACT:
                word = PyBytes_FromFormat(b"%zd", <Py_ssize_t>number)
            else:
                word = _as_argument(word)
        Py_INCREF(word)
        PyList_SET_ITEM(argv, place - 1, word)
    return argv


cdef class _DirectCall:
    cdef object scripting, engine, session, keyspace, stats, queued
    cdef object call_other, hand, ok_mark
    cdef dict rows, busy
    cdef array.array tally

    def __init__(self, scripting, engine, session, lua):
        self.scripting = scripting
        self.engine = engine
        self.session = session
        self.keyspace = engine.keyspace
        self.stats = engine.stats
        self.tally = engine.stats.tally
        self.busy = engine.busy_names.table
        self.queued = engine.lazy.pending
        self.rows = rows_of(engine)
        self.call_other = scripting.call
        self.hand = lua.hand
        self.ok_mark = lua.ok_mark

    def __call__(self, *arguments):
        try:
            return self.run(arguments)
        except _ReplyError as error:
            return self.hand(error, arguments[0])
        except Exception as error:
            return self.hand(internal_error(arguments[1:], error), arguments[0])

    cdef object run(self, tuple arguments):
        cdef Py_ssize_t size = PyTuple_GET_SIZE(arguments) - 1
        cdef object engine = self.engine, session = self.session, run, command, dirty, reply = None
        cdef tuple row
        cdef list argv
        cdef bint alone, timed
        cdef int overflow = 0
        cdef long long began = 0, took
        cdef long long *counters
        cdef long long *tally
        cdef Py_ssize_t place
        cdef PyObject *found = NULL
        if size > 0:
            found = PyDict_GetItemWithError(self.rows, <object>PyTuple_GET_ITEM(arguments, 1))
        run = self.scripting.running
        if found is NULL or run is None or run.unread or engine.scripts_gated or self.busy or self.queued:
            return self.call_other(*arguments)
        row = <tuple>found
        if not <Py_ssize_t>row[LOW] <= size <= <long long>row[HIGH] or not session.user.unrestricted:
            return self.call_other(*arguments)
        argv = words_of(arguments)
        if <bint>row[WRITES] and not run.wrote:
            if run.read_only:
                return self.call_other(*arguments)
            run.wrote = True
        session.protocol = <object>PyTuple_GET_ITEM(arguments, 0)
        session.effects = None
        dirty = self.keyspace.dirty
        counters = (<array.array>row[COUNTERS]).data.as_longlongs
        tally = self.tally.data.as_longlongs
        alone = size > MANY_ARGUMENTS
        timed = alone or counters[UNTIMED] + 1 >= SAMPLE or counters[CALLS] < SAMPLE
        if timed:
            began = nanoseconds()
        try:
            reply = row[HANDLER](session, argv)
        except _LongWay:
            return self.hand(run_handler(engine, session, row[COMMAND], argv, CLIENT), session.protocol)
        except _ReplyError as error:
            counters[FAILED] += 1
            self.stats.count_error(error)
            reply = error
        if timed:
            took = nanoseconds() - began
            self.stats.count_time(row[COUNTERS], took, alone)
            if took >= SLOW:
                engine.notice(session, row[COMMAND], argv, took)
        else:
            counters[UNTIMED] += 1
        counters[CALLS] += 1
        tally[COMMANDS] += 1
        place = row[READS_ONE]
        if place:
            if PyDict_Contains(session.db.data, <object>PyList_GET_ITEM(argv, place)):
                tally[HITS] += 1
            else:
                tally[MISSES] += 1
        elif <bint>row[READS_MORE]:
            engine.count_lookups(session.db.data, row[COMMAND], argv)
        if engine.log is not None and self.keyspace.dirty != dirty:
            engine.propagate(session.db, [argv] if session.effects is None else session.effects)
        if PyLong_CheckExact(reply):
            PyLong_AsLongLongAndOverflow(reply, &overflow)
            if overflow == 0:
                return reply
        return self.ok_mark if reply is _OK else self.hand(reply, <object>PyTuple_GET_ITEM(arguments, 0))


def direct_call(scripting, engine, session, lua):
    return _DirectCall(scripting, engine, session, lua)
