# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled twin of blocks.py's `write_database`; that file says what it writes, and the same tests run on both.

A forked child shares its memory with the server until one of them writes to it. Python writes to each object that it
touches, because it counts references. So this walk holds borrowed pointers only: it reads dicts, sets, lists and bytes
in place, and counts no references. Its output goes through one buffer; large strings are written to the file from where
they are.

No value may change during the walk. In the child nothing else runs, and SAVE holds the loop, which owns all values.

Sets are read through the struct in Python's public headers. The struct of a deque is not public: a copy of its first
fields is used, which are the same in CPython 3.11 to 3.13; so is that of an array. On other versions, and for values
whose elements are not bytes, `BlockWriter.packed` is called.

A stream of ours whose messages all are in its open node, and that has nothing else, is walked too: there may be very
many of them. For others `Stream.parts` is called. That counts references to the stream and to its nodes, a thousand
messages each; the messages of the open node are written from where they are.
"""

from cpython.ref cimport PyObject

from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.packing import Unmade, made
from penstock.types.set import Set
from penstock.types.stream.active import Active
from penstock.types.stream.messages import Messages
from penstock.types.stream.producers import Producers, Stages
from penstock.types.stream.retention import Retention
from penstock.types.stream.stream import Stream
from penstock.types.xstream import XStream
from penstock.types.zset import SortedSet

cdef extern from *:
    """
    #include <structmember.h>

    #define KEYS_A_BLOCK 8192
    #define BUFFER (1 << 20)
    #define DIRECT (1 << 16)
    #define DEQUE_IS_KNOWN (PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030e0000)

    typedef struct DequeBlock {
        struct DequeBlock *left;
        PyObject *data[64];
        struct DequeBlock *right;
    } DequeBlock;

    typedef struct {
        PyObject_VAR_HEAD
        DequeBlock *first;
        DequeBlock *last;
        Py_ssize_t first_index;
    } Deque;

    typedef struct {
        PyObject_VAR_HEAD
        const char *items;
    } Array;

    enum Kind {BYTES, BYTEARRAY, INT, LIST, SET, HASH, ZSET, XSTREAM, OTHER};

    /* A walk over the byte strings of a value, in the order in which `dump` packs them. */
    typedef struct {
        enum Kind kind;
        PyObject *container;
        Py_ssize_t at;
        PyObject *held;        /* a hash's value, after its field */
        DequeBlock *block;
        Py_ssize_t inner;
        Py_ssize_t outer;
        PyObject *fields;      /* of the row of a stream */
    } Walk;

    static void start_walk(Walk *walk, enum Kind kind, PyObject *container) {
        memset(walk, 0, sizeof(Walk));
        walk->kind = kind;
        walk->container = container;
        if (kind == LIST) {
            walk->block = ((Deque *)container)->first;
            walk->inner = ((Deque *)container)->first_index;
        }
    }

    /* The next row of a stream: its (milliseconds, sequence), NULL at the end. */
    static PyObject *next_row(Walk *walk) {
        while (walk->outer < PyList_GET_SIZE(walk->container)) {
            PyObject *block = PyList_GET_ITEM(walk->container, walk->outer);
            if (walk->inner < PyList_GET_SIZE(block)) {
                PyObject *row = PyList_GET_ITEM(block, walk->inner++);
                walk->fields = PyTuple_GET_ITEM(row, 1);
                return PyTuple_GET_ITEM(row, 0);
            }
            walk->outer++;
            walk->inner = 0;
        }
        return NULL;
    }

    static PyObject *next_item(Walk *walk) {
        PyObject *key, *value;
        switch (walk->kind) {
        case LIST:
            if (walk->at++ >= Py_SIZE(walk->container)) return NULL;
            key = walk->block->data[walk->inner++];
            if (walk->inner == 64) {
                walk->block = walk->block->right;
                walk->inner = 0;
            }
            return key;
        case SET: {
            PySetObject *set = (PySetObject *)walk->container;
            while (walk->at <= set->mask) {
                setentry *entry = &set->table[walk->at++];
                if (entry->key != NULL && entry->hash != -1) return entry->key;
            }
            return NULL;
        }
        case HASH:
            if (walk->held != NULL) {
                key = walk->held;
                walk->held = NULL;
                return key;
            }
            return PyDict_Next(walk->container, &walk->at, &key, &walk->held) ? key : NULL;
        case ZSET:
            return PyDict_Next(walk->container, &walk->at, &key, &value) ? key : NULL;
        case XSTREAM:
            while (walk->fields == NULL || walk->at >= PyTuple_GET_SIZE(walk->fields)) {
                walk->at = 0;
                if (next_row(walk) == NULL) return NULL;
            }
            return PyTuple_GET_ITEM(walk->fields, walk->at++);
        default:
            return NULL;
        }
    }

    static Py_ssize_t member_offset(PyObject *descriptor) {
        if (Py_TYPE(descriptor) != &PyMemberDescr_Type) return -1;
        return ((PyMemberDescrObject *)descriptor)->d_member->offset;
    }

    static inline PyObject *member_at(PyObject *object, Py_ssize_t offset) {
        return *(PyObject **)((char *)object + offset);
    }

    static inline const char *array_items(PyObject *array) {return ((Array *)array)->items;}
    static inline Py_ssize_t array_size(PyObject *array) {return Py_SIZE(array);}
    static inline int is_true(PyObject *o) {return o == Py_True;}
    static inline int is_none(PyObject *o) {return o == Py_None;}
    static inline int is_bytes(PyObject *o) {return Py_TYPE(o) == &PyBytes_Type;}
    static inline int is_bytearray(PyObject *o) {return Py_TYPE(o) == &PyByteArray_Type;}
    static inline int is_int(PyObject *o) {return Py_TYPE(o) == &PyLong_Type;}
    static inline int is_float(PyObject *o) {return Py_TYPE(o) == &PyFloat_Type;}
    static inline PyObject *type_of(PyObject *o) {return (PyObject *)Py_TYPE(o);}
    static inline Py_ssize_t set_size(PyObject *o) {return ((PySetObject *)o)->used;}
    static inline Py_ssize_t deque_size(PyObject *o) {return Py_SIZE(o);}
    """
    enum: KEYS_A_BLOCK
    enum: BUFFER
    enum: DIRECT
    bint DEQUE_IS_KNOWN
    enum Kind: BYTES, BYTEARRAY, INT, LIST, SET, HASH, ZSET, XSTREAM, OTHER
    ctypedef struct Walk:
        PyObject *fields
    void start_walk(Walk *walk, Kind kind, PyObject *container)
    PyObject *next_row(Walk *walk)
    PyObject *next_item(Walk *walk)
    Py_ssize_t member_offset(PyObject *descriptor)
    PyObject *member_at(PyObject *object, Py_ssize_t offset)
    const char *array_items(PyObject *array)
    Py_ssize_t array_size(PyObject *array)
    bint is_true(PyObject *o)
    bint is_none(PyObject *o)
    bint is_bytes(PyObject *o)
    bint is_bytearray(PyObject *o)
    bint is_int(PyObject *o)
    bint is_float(PyObject *o)
    PyObject *type_of(PyObject *o)
    Py_ssize_t set_size(PyObject *o)
    Py_ssize_t deque_size(PyObject *o)

cdef extern from "Python.h":
    const char *PyBytes_AS_STRING(PyObject *o)
    Py_ssize_t PyBytes_GET_SIZE(PyObject *o)
    const char *PyByteArray_AS_STRING(PyObject *o)
    Py_ssize_t PyByteArray_GET_SIZE(PyObject *o)
    double PyFloat_AS_DOUBLE(PyObject *o)
    long long PyLong_AsLongLongAndOverflow(PyObject *o, int *overflow) except? -1
    unsigned long long PyLong_AsUnsignedLongLong(PyObject *o) except? 0xFFFFFFFFFFFFFFFF
    int PyDict_Next(PyObject *o, Py_ssize_t *at, PyObject **key, PyObject **value)
    Py_ssize_t PyDict_Size(PyObject *o) except -1
    PyObject *PyDict_GetItemWithError(PyObject *o, PyObject *key) except? NULL
    PyObject *PyTuple_GET_ITEM(PyObject *o, Py_ssize_t at)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *o)
    PyObject *PyList_GET_ITEM(PyObject *o, Py_ssize_t at)
    Py_ssize_t PyList_GET_SIZE(PyObject *o)
    object PyMemoryView_FromMemory(char *memory, Py_ssize_t size, int flags)
    enum: PyBUF_READ

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

DEF HEADER = 40  # of a stream's dump: five numbers
DEF LEFT_OUT = -2  # instead of a size
DEF PLAIN_HEAD = 42  # of a stream of ours: a byte, four counts of 32 bits, three numbers of 64, and a flag
DEF PLAIN_LOG = 40  # five numbers


cdef class Walker:
    """Writes databases. One at a time: it has the arrays for a block, and the buffer."""

    cdef:
        object _begin, _put, _end, _packed, _is_name
        dict _made  # of values that are not walked, by their place in the block: the dump, or what it is made of
        char *_buffer
        Py_ssize_t _used
        Py_ssize_t _most_keys, _most_bytes  # of a block; its last value may go beyond
        Py_ssize_t _largest_value
        object _too_large  # makes the error about one that is larger
        PyObject **_keys
        PyObject **_values
        Py_ssize_t *_sizes
        # Where these are in their objects:
        Py_ssize_t _scores, _blocks, _length, _last_id, _max_deleted_id, _entries_added
        Py_ssize_t _messages, _groups, _producers, _stages, _retention, _schemas, _delays, _by_id, _by_token
        Py_ssize_t _first, _last, _lowest, _sealed_nodes, _history, _active
        Py_ssize_t _start, _before, _times, _tags, _entries, _count, _age_ms, _bytes, _compact
        PyObject *_list_type
        PyObject *_set_type
        PyObject *_hash_type
        PyObject *_zset_type
        PyObject *_xstream_type
        PyObject *_stream_type

    def __cinit__(self, blocks):
        self._buffer = <char *> malloc(BUFFER)
        self._keys = <PyObject **> malloc(KEYS_A_BLOCK * sizeof(PyObject *))
        self._values = <PyObject **> malloc(KEYS_A_BLOCK * sizeof(PyObject *))
        self._sizes = <Py_ssize_t *> malloc(KEYS_A_BLOCK * sizeof(Py_ssize_t))
        if not (self._buffer and self._keys and self._values and self._sizes):
            raise MemoryError
        self._begin, self._put, self._end = blocks.begin, blocks.put, blocks.end
        self._packed, self._is_name = blocks.packed, blocks.is_name
        self._most_keys, self._most_bytes = min(blocks.most_keys, KEYS_A_BLOCK), blocks.most_bytes
        self._largest_value, self._too_large = blocks.largest_value, blocks.too_large
        self._made = {}
        self._list_type = <PyObject *> List
        self._set_type = <PyObject *> Set
        self._hash_type = <PyObject *> Hash
        self._zset_type = <PyObject *> SortedSet
        self._xstream_type = <PyObject *> XStream
        self._stream_type = <PyObject *> Stream
        self._scores = _offset(SortedSet, "scores")
        self._blocks = _offset(XStream, "_blocks")
        self._length = _offset(XStream, "_length")
        self._last_id = _offset(XStream, "last_id")
        self._max_deleted_id = _offset(XStream, "max_deleted_id")
        self._entries_added = _offset(XStream, "entries_added")
        self._messages = _offset(Stream, "messages")
        self._groups = _offset(Stream, "groups")
        self._producers = _offset(Stream, "producers")
        self._stages = _offset(Stream, "stages")
        self._retention = _offset(Stream, "retention")
        self._schemas = _offset(Stream, "schemas")
        self._delays = _offset(Stream, "delays")
        self._by_id = _offset(Producers, "by_id")
        self._by_token = _offset(Stages, "by_token")
        self._first = _offset(Messages, "first")
        self._last = _offset(Messages, "last")
        self._lowest = _offset(Messages, "lowest")
        self._sealed_nodes = _offset(Messages, "sealed_nodes")
        self._history = _offset(Messages, "history")
        self._active = _offset(Messages, "active")
        self._start = _offset(Active, "start")
        self._before = _offset(Active, "before")
        self._times = _offset(Active, "times")
        self._tags = _offset(Active, "tags")
        self._entries = _offset(Active, "entries")
        self._count = _offset(Retention, "count")
        self._age_ms = _offset(Retention, "age_ms")
        self._bytes = _offset(Retention, "bytes")
        self._compact = _offset(Retention, "compact")

    def __dealloc__(self):
        free(self._buffer)
        free(self._keys)
        free(self._values)
        free(self._sizes)

    # -- a database ---------------------------------------------------------------------------------------------

    def write(self, database):
        """All blocks of a database."""
        cdef object data = database.data, expires = database.expires
        cdef object index = database.index
        cdef Py_ssize_t at = 0, count = 0, start, place, size
        cdef bint more = True, plain
        while more:
            count, plain = 0, True
            while count < self._most_keys:
                more = PyDict_Next(<PyObject *> data, &at, &self._keys[count], &self._values[count])
                if not more:
                    break
                if not is_bytes(self._keys[count]) and not self._is_name(<object> self._keys[count]):
                    continue
                plain = plain and is_bytes(self._values[count])
                count += 1
            start = size = place = 0
            while place < count:
                self._sizes[place] = PyBytes_GET_SIZE(self._values[place]) if plain else self._size(place)
                if self._sizes[place] == LEFT_OUT:
                    count -= 1
                    memmove(&self._keys[place], &self._keys[place + 1], (count - place) * sizeof(PyObject *))
                    memmove(&self._values[place], &self._values[place + 1], (count - place) * sizeof(PyObject *))
                    continue
                if self._sizes[place] > self._largest_value:
                    raise self._too_large(<bytes> <object> self._keys[place], self._sizes[place])
                size += PyBytes_GET_SIZE(self._keys[place]) + self._sizes[place]
                if size > self._most_bytes:
                    self._write_block(index, expires, plain, start, place + 1)
                    start, size = place + 1, 0
                place += 1
            if start < count:
                self._write_block(index, expires, plain, start, count)

    cdef int _write_block(self, object index, dict expires, bint plain, Py_ssize_t start, Py_ssize_t stop) except -1:
        cdef Py_ssize_t place, count = stop - start, keys = 4 + 4 * count, values = 4 + 4 * count
        cdef bint timed = False
        cdef PyObject *when
        if expires:
            for place in range(start, stop):
                if PyDict_GetItemWithError(<PyObject *> expires, self._keys[place]) != NULL:
                    timed = True
                    break
        for place in range(start, stop):
            keys += PyBytes_GET_SIZE(self._keys[place])
            values += self._sizes[place]
        self._begin(plain, timed, index, count, (8 * count if timed else 0) + 12 + keys + values)
        if timed:
            for place in range(start, stop):
                when = PyDict_GetItemWithError(<PyObject *> expires, self._keys[place])
                self._put_u64(0 if when == NULL else PyLong_AsUnsignedLongLong(when))
        self._put_u32(2)
        self._put_length(keys)
        self._put_length(values)
        self._put_length(count)
        for place in range(start, stop):
            self._put_length(PyBytes_GET_SIZE(self._keys[place]))
        for place in range(start, stop):
            self._put_bytes(self._keys[place])
        self._put_length(count)
        for place in range(start, stop):
            self._put_length(self._sizes[place])
        for place in range(start, stop):
            if plain:
                self._put_bytes(self._values[place])
            else:
                self._put_value(place)
        self._flush()
        self._made.clear()
        self._end()
        return 0

    # -- a value ------------------------------------------------------------------------------------------------

    cdef Kind _kind(self, PyObject *value) noexcept:
        cdef PyObject *kind = type_of(value)
        if is_bytes(value):
            return BYTES
        if kind == self._hash_type:
            return HASH
        if kind == self._set_type:
            return SET
        if kind == self._zset_type:
            return ZSET
        if kind == self._list_type and DEQUE_IS_KNOWN:
            return LIST
        if is_int(value):
            return INT
        if is_bytearray(value):
            return BYTEARRAY
        return XSTREAM if kind == self._xstream_type else OTHER

    cdef PyObject *_container(self, Kind kind, PyObject *value) noexcept:
        """What is walked."""
        if kind == ZSET:
            return member_at(value, self._scores)
        return member_at(value, self._blocks) if kind == XSTREAM else value

    cdef Py_ssize_t _size(self, Py_ssize_t place) except -1:
        """How many bytes codec.dump would give for a value, or LEFT_OUT; one that cannot be walked is dumped."""
        cdef PyObject *value = self._values[place]
        cdef Kind kind = self._kind(value)
        cdef char digits[32]
        cdef int overflow = 0
        cdef long long number
        cdef Py_ssize_t size = -1
        if kind == BYTES:
            return 1 + PyBytes_GET_SIZE(value)
        if kind == BYTEARRAY:
            return 1 + PyByteArray_GET_SIZE(value)
        if kind == INT:
            number = PyLong_AsLongLongAndOverflow(value, &overflow)
            if not overflow:
                return 1 + snprintf(digits, sizeof(digits), b"%lld", number)
        elif kind != OTHER:
            size = self._walked_size(kind, self._container(kind, value))
        if type_of(value) == self._stream_type and self._is_plain(value):
            return self._plain_size(value)
        if size < 0 and type_of(value) == self._stream_type:
            return self._stream_size(place, (<object> value).parts())
        if size < 0:
            dumped = self._packed(<object> self._keys[place], <object> value)
            if dumped is None:
                return LEFT_OUT
            self._made[place] = dumped
            size = len(dumped)
        return size

    cdef int _is_plain(self, PyObject *stream) except -1:
        """Whether all messages of a stream are in its open node, and it has nothing else."""
        cdef PyObject *messages = member_at(stream, self._messages)
        cdef PyObject *active = member_at(messages, self._active)
        return (
            DEQUE_IS_KNOWN
            and not PyDict_Size(member_at(stream, self._groups))
            and not PyDict_Size(member_at(member_at(stream, self._producers), self._by_id))
            and not PyDict_Size(member_at(member_at(stream, self._stages), self._by_token))
            and is_none(member_at(stream, self._schemas))
            and is_none(member_at(stream, self._delays))
            and not PyList_GET_SIZE(member_at(messages, self._history))
            and not _number(member_at(messages, self._sealed_nodes))
            and _all_bytes(member_at(active, self._tags))
            and _all_bytes(member_at(active, self._entries))
        )

    cdef Py_ssize_t _plain_size(self, PyObject *stream) except -1:
        """As Stream.parts has it: a head, the log, times, tags and entries."""
        cdef PyObject *active = member_at(member_at(stream, self._messages), self._active)
        return (
            1 + 4 + 5 * 4 + PLAIN_HEAD + PLAIN_LOG + 8 * array_size(member_at(active, self._times))
            + _packed_size(member_at(active, self._tags)) + _packed_size(member_at(active, self._entries))
        )

    cdef int _put_plain(self, PyObject *stream) except -1:
        cdef PyObject *messages = member_at(stream, self._messages)
        cdef PyObject *active = member_at(messages, self._active)
        cdef PyObject *retention = member_at(stream, self._retention)
        cdef PyObject *times = member_at(active, self._times)
        cdef PyObject *tags = member_at(active, self._tags)
        cdef PyObject *entries = member_at(active, self._entries)
        cdef const int64_t *time = <const int64_t *> array_items(times)
        cdef Py_ssize_t at
        self._put_u8(6)
        self._put_length(5)
        self._put_length(PLAIN_HEAD)
        self._put_length(PLAIN_LOG)
        self._put_length(8 * array_size(times))
        self._put_length(_packed_size(tags))
        self._put_length(_packed_size(entries))
        self._put_u8(1)  # the format
        for at in range(4):
            self._put_u32(0)  # nodes, groups, producers, stages
        self._put_u64(_number(member_at(retention, self._count)))
        self._put_u64(_number(member_at(retention, self._age_ms)))
        self._put_u64(_number(member_at(retention, self._bytes)))
        self._put_u8(is_true(member_at(retention, self._compact)))
        self._put_u64(_number(member_at(messages, self._first)))
        self._put_u64(_number(member_at(messages, self._last)))
        self._put_u64(_number(member_at(messages, self._lowest)))
        self._put_u64(_number(member_at(active, self._start)))
        self._put_u64(_number(member_at(active, self._before)))
        for at in range(array_size(times)):
            self._put_u64(<uint64_t> time[at])
        self._put_packed(tags)
        return self._put_packed(entries)

    cdef Py_ssize_t _stream_size(self, Py_ssize_t place, object parts) except -1:
        """The parts are kept until they are written; of a list the strings stay where they are."""
        cdef Py_ssize_t size = 5, at
        cdef list kept = list(parts)
        for at, part in enumerate(kept):
            if type(part) is list and not _all_bytes(<PyObject *> part):
                part = kept[at] = made(part)
            size += 4 + self._part_size(part)
        self._made[place] = kept
        return size

    cdef Py_ssize_t _part_size(self, object part) except -1:
        if type(part) is list:
            return _packed_size(<PyObject *> part)
        return part.size if type(part) is Unmade else len(part)

    cdef int _put_part(self, object part) except -1:
        if type(part) is list:
            return self._put_packed(<PyObject *> part)
        whole = part.make() if type(part) is Unmade else part
        return self._put_bytes(<PyObject *> whole)

    cdef int _put_packed(self, PyObject *strings) except -1:
        """What pack_many makes of a list."""
        cdef Py_ssize_t at, count = PyList_GET_SIZE(strings)
        self._put_length(count)
        for at in range(count):
            self._put_length(PyBytes_GET_SIZE(PyList_GET_ITEM(strings, at)))
        for at in range(count):
            self._put_bytes(PyList_GET_ITEM(strings, at))
        return 0

    cdef Py_ssize_t _walked_size(self, Kind kind, PyObject *container) except -2:
        """-1 if not all items are bytes, and all scores floats."""
        cdef Walk walk
        cdef PyObject *item
        cdef PyObject *score
        cdef Py_ssize_t items = 0, size = 0, at = 0
        if kind == ZSET:
            while PyDict_Next(container, &at, &item, &score):
                if not is_float(score):
                    return -1
        start_walk(&walk, kind, container)
        while True:
            item = next_item(&walk)
            if item == NULL:
                break
            if not is_bytes(item):
                return -1
            items += 1
            size += PyBytes_GET_SIZE(item)
        size += 1 + 4 + 4 * items
        if kind == ZSET:
            size += 4 + 8 * items
        elif kind == XSTREAM:
            size += 3 * 4 + HEADER + 20 * _rows(container)
        return size

    cdef int _put_value(self, Py_ssize_t place) except -1:
        """What codec.dump would give."""
        cdef PyObject *value = self._values[place]
        cdef Kind kind = self._kind(value)
        cdef char digits[32]
        cdef object parts = self._made.get(place)
        cdef int overflow = 0
        if type(parts) is list:
            self._put_u8(6)
            self._put_length(len(parts))
            for part in parts:
                self._put_length(self._part_size(part))
            for part in parts:
                self._put_part(part)
        elif parts is not None:
            self._put_bytes(<PyObject *> parts)
        elif kind == BYTES:
            self._put_u8(0)
            self._put_bytes(value)
        elif kind == BYTEARRAY:
            self._put_u8(0)
            self._put_memory(PyByteArray_AS_STRING(value), PyByteArray_GET_SIZE(value))
        elif kind == INT:
            self._put_u8(0)
            self._put_memory(
                digits, snprintf(digits, sizeof(digits), b"%lld", PyLong_AsLongLongAndOverflow(value, &overflow))
            )
        elif type_of(value) == self._stream_type:
            self._put_plain(value)
        else:
            self._put_walked(kind, value)
        return 0

    cdef int _put_walked(self, Kind kind, PyObject *value) except -1:
        cdef PyObject *container = self._container(kind, value)
        cdef PyObject *item
        cdef PyObject *score
        cdef Walk walk
        cdef Py_ssize_t at = 0, size
        cdef double number
        cdef uint64_t bits
        self._put_u8(1 if kind == LIST else 2 if kind == SET else 3 if kind == HASH else 4 if kind == ZSET else 5)
        if kind == LIST:
            self._put_length(deque_size(container))
        elif kind == SET:
            self._put_length(set_size(container))
        elif kind == HASH:
            self._put_length(2 * PyDict_Size(container))
        elif kind == ZSET:
            size = PyDict_Size(container)
            self._put_length(1 + size)
            self._put_length(8 * size)
        else:
            size = _rows(container)
            self._put_length(3 + _fields(container))
            self._put_length(HEADER)
            self._put_length(16 * size)
            self._put_length(4 * size)
        start_walk(&walk, kind, container)
        while True:
            item = next_item(&walk)
            if item == NULL:
                break
            self._put_length(PyBytes_GET_SIZE(item))
        if kind == ZSET:
            while PyDict_Next(container, &at, &item, &score):
                number = PyFloat_AS_DOUBLE(score)
                memcpy(&bits, &number, 8)
                self._put_u64(bits)
        elif kind == XSTREAM:
            self._put_numbers(value, container)
        start_walk(&walk, kind, container)
        while True:
            item = next_item(&walk)
            if item == NULL:
                break
            self._put_bytes(item)
        return 0

    cdef int _put_numbers(self, PyObject *stream, PyObject *blocks) except -1:
        """A stream's header, its ids, and how many fields each entry has."""
        cdef Walk walk
        cdef PyObject *row_id
        self._put_id(member_at(stream, self._last_id))
        self._put_id(member_at(stream, self._max_deleted_id))
        self._put_u64(PyLong_AsUnsignedLongLong(member_at(stream, self._entries_added)))
        start_walk(&walk, XSTREAM, blocks)
        while True:
            row_id = next_row(&walk)
            if row_id == NULL:
                break
            self._put_id(row_id)
        start_walk(&walk, XSTREAM, blocks)
        while next_row(&walk) != NULL:
            self._put_length(PyTuple_GET_SIZE(walk.fields))
        return 0

    cdef int _put_id(self, PyObject *pair) except -1:
        self._put_u64(PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pair, 0)))
        return self._put_u64(PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pair, 1)))

    # -- the buffer ---------------------------------------------------------------------------------------------

    cdef int _flush(self) except -1:
        if self._used:
            self._put(PyMemoryView_FromMemory(self._buffer, self._used, PyBUF_READ))
            self._used = 0
        return 0

    cdef int _put_memory(self, const char *memory, Py_ssize_t size) except -1:
        if size >= DIRECT:
            self._flush()
            self._put(PyMemoryView_FromMemory(<char *> memory, size, PyBUF_READ))
            return 0
        if self._used + size > BUFFER:
            self._flush()
        memcpy(self._buffer + self._used, memory, size)
        self._used += size
        return 0

    cdef inline int _put_bytes(self, PyObject *text) except -1:
        return self._put_memory(PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))

    cdef inline int _put_u8(self, unsigned char number) except -1:
        return self._put_memory(<char *> &number, 1)

    cdef int _put_length(self, Py_ssize_t number) except -1:
        if number >> 32:
            raise OverflowError("a length of more than 32 bits")
        return self._put_u32(<uint32_t> number)

    cdef inline int _put_u32(self, uint32_t number) except -1:
        cdef unsigned char raw[4]
        cdef int at
        for at in range(4):
            raw[at] = (number >> (8 * at)) & 0xFF
        return self._put_memory(<char *> raw, 4)

    cdef inline int _put_u64(self, uint64_t number) except -1:
        cdef unsigned char raw[8]
        cdef int at
        for at in range(8):
            raw[at] = (number >> (8 * at)) & 0xFF
        return self._put_memory(<char *> raw, 8)


cdef long long _number(PyObject *number) except? -1:
    cdef int overflow = 0
    return PyLong_AsLongLongAndOverflow(number, &overflow)


cdef Py_ssize_t _packed_size(PyObject *strings) noexcept:
    """How many bytes pack_many makes of a list."""
    cdef Py_ssize_t at, count = PyList_GET_SIZE(strings), size = 4 + 4 * count
    for at in range(count):
        size += PyBytes_GET_SIZE(PyList_GET_ITEM(strings, at))
    return size


cdef bint _all_bytes(PyObject *strings) noexcept:
    cdef Py_ssize_t at
    for at in range(PyList_GET_SIZE(strings)):
        if not is_bytes(PyList_GET_ITEM(strings, at)):
            return False
    return True


cdef Py_ssize_t _rows(PyObject *blocks) noexcept:
    cdef Walk walk
    cdef Py_ssize_t rows = 0
    start_walk(&walk, XSTREAM, blocks)
    while next_row(&walk) != NULL:
        rows += 1
    return rows


cdef Py_ssize_t _fields(PyObject *blocks) noexcept:
    cdef Walk walk
    cdef Py_ssize_t fields = 0
    start_walk(&walk, XSTREAM, blocks)
    while next_row(&walk) != NULL:
        fields += PyTuple_GET_SIZE(walk.fields)
    return fields


cdef Py_ssize_t _offset(object kind, str name) except -1:
    """Where in its instances a slot of a class is."""
    cdef Py_ssize_t offset = member_offset(<PyObject *> kind.__dict__[name])
    if offset < 0:
        raise TypeError(f"{kind.__name__}.{name} is no slot")
    return offset


def write_database(blocks, database):
    """Write all blocks of a database."""
    Walker(blocks).write(database)
