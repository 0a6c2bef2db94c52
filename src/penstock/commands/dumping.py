"""DUMP and RESTORE: a value as bytes, to be stored elsewhere.

    payload = the value as types/codec.py writes it, version (2 bytes), checksum of all before it (8 bytes)

The format is our own: Penstock refuses a payload of Redis by its checksum, and Redis one of ours. A payload comes from
a client, so nothing in it is trusted: RESTORE changes no key before it has read the whole value, and refuses a
compressed part that would unpack to more than an argument may hold. Payloads from the log were accepted before, and are
not limited again.

A large collection is dumped in pieces that no call joins, and restored in chunks, both in a worker thread. So is a long
string, for its checksum: 0.3 s for 100 MB, in which hashlib leaves the interpreter to others.
"""

from __future__ import annotations

from hashlib import blake2b

from penstock.commands.keys import place
from penstock.engine.arguments import INT64_MAX, to_integer
from penstock.engine.concurrency.long_work import BYTES_AN_ELEMENT, LONG
from penstock.engine.declarations import Access, Argv, Effect, Flag, Reply, command, key
from penstock.engine.keyspace.databases import Database, Value
from penstock.engine.session import Session
from penstock.engine.stream_history import Foreseen, with_history
from penstock.protocol.errors import BusyKey, ReplyError, syntax_error
from penstock.protocol.resp import OK, RawPieces
from penstock.types import codec
from penstock.types.packing import CorruptValue, OversizedValue
from penstock.types.stream.messages import MOST
from penstock.types.stream.nodes import Storage
from penstock.types.stream.stream import Stream
from penstock.types.xstream import XStream

VERSION = 1
_VERSION_BYTES = VERSION.to_bytes(2, "little")
_CHECKSUM_SIZE = 8
_FOOTER_SIZE = 2 + _CHECKSUM_SIZE


def _checksum(*pieces: bytes | memoryview) -> bytes:
    found = blake2b(digest_size=_CHECKSUM_SIZE)
    for piece in pieces:
        found.update(piece)
    return found.digest()


def to_payload(value: Value) -> bytes:
    """A value as DUMP answers it.

    >>> from_payload(to_payload(b"hello"))
    b'hello'
    """
    return b"".join(_payload_pieces(value))


def _payload_pieces(value: Value) -> list[bytes]:
    pieces = [*codec.dump_pieces(value), _VERSION_BYTES]
    return [*pieces, _checksum(*pieces)]


def from_payload(payload: bytes, limit: int | None = None, storage: Storage | None = None) -> Value:
    """The value in a payload, or the error RESTORE answers; `limit` bounds what a compressed part may unpack to.

    A stream is kept as `storage` says.
    """
    with memoryview(payload) as view:
        intact = len(payload) > _FOOTER_SIZE and _checksum(view[:-_CHECKSUM_SIZE]) == payload[-_CHECKSUM_SIZE:]
    if not intact or payload[-_FOOTER_SIZE:-_CHECKSUM_SIZE] != _VERSION_BYTES:
        raise ReplyError("DUMP payload version or checksum are wrong")
    try:
        return codec.load(payload[:-_FOOTER_SIZE], limit, storage)
    except OversizedValue as error:
        raise ReplyError(f"serialized-value refused: {error}, and proto-max-bulk-len allows {limit}") from None
    except CorruptValue:
        raise ReplyError("Bad data format") from None


def _work(value: Value) -> int:
    """About how many elements a dump goes through; of a string, how many pieces of it its checksum."""
    if isinstance(value, bytes | bytearray):
        return len(value) // BYTES_AN_ELEMENT
    return len(value) if isinstance(value, XStream) else codec.elements(value)


def _work_of_load(payload: bytes) -> int:
    """About how many elements `from_payload` goes through. A stream is loaded on the loop: it is nodes, mostly."""
    if codec.kind_of_dump(payload) is Stream:
        return 1
    return max(codec.elements_dumped(payload), len(payload) // BYTES_AN_ELEMENT)


def _check_size(session: Session, stream: Stream) -> None:
    """Refuse to read more from files than a reply may have."""
    size, most = sum(segment.stored for segment in stream.messages.history), session.engine.config.proto_max_bulk_len
    if size > most:
        raise ReplyError(
            f"the stream has {size} bytes in files, and proto-max-bulk-len allows {most}; `penstock history export` "
            "writes it to a file"
        )


def _foresee_dump(session: Session, database: Database, argv: Argv) -> Foreseen:
    value = database.get(argv[1])
    if type(value) is not Stream:
        return Foreseen([])
    _check_size(session, value)
    return _whole(value)


def _whole(stream: Stream) -> Foreseen:
    return Foreseen([(stream.messages, (stream.messages.first, stream.messages.last + 1))])


@command(
    "DUMP",
    arity=2,
    flags=Flag.READONLY,
    keys=key(1, Access.READ),
    group="generic",
    syntax="key",
    cost="O(N) with N bytes in the value",
    foresees=_foresee_dump,
)
def dump(session: Session, argv: Argv) -> Reply:
    """Answer the value at key as bytes for RESTORE; null if there is no such key. The expiry time is not included."""
    value = session.db.get(argv[1])
    if value is None:
        return None
    work = _work(value)
    if type(value) is Stream and value.messages.history:
        _check_size(session, value)
        if session.fetched is not None:  # in a transaction or a script, for which a thread has read them
            return with_history(session, _whole(value), lambda: to_payload(value))
        work = INT64_MAX  # files are read in a thread
    if work <= LONG:
        return to_payload(value)

    def compute() -> RawPieces:
        pieces = _payload_pieces(value)
        return RawPieces([b"$%d\r\n" % sum(map(len, pieces)), *pieces, b"\r\n"])

    return session.aside(work, compute)


@command(
    "RESTORE",
    arity=-4,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.TIMED,
    keys=key(1, Access.WRITE, Effect.OVERWRITE),
    group="generic",
    syntax="key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
    cost="O(N) with N bytes in the value",
    categories=["dangerous"],
    grows=lambda session, argv: codec.size_of_loaded(argv[3]),
)
def restore(session: Session, argv: Argv) -> Reply:
    """Create a key from what DUMP answered, to be deleted in ttl milliseconds; 0 keeps it.

    REPLACE replaces a key that exists; with ABSTTL, ttl is a time in milliseconds since 1970. IDLETIME and FREQ are
    accepted and do nothing.
    """
    options = _options(argv)
    db = session.db
    name, payload = argv[1], argv[3]
    if b"REPLACE" not in options and name in db:
        raise BusyKey
    when = to_integer(argv[2])
    if when < 0:
        raise ReplyError("Invalid TTL value, must be >= 0")
    engine = session.engine
    limit = None if engine.loading else engine.config.proto_max_bulk_len
    storage = engine.keyspace.stream_storage

    def commit(value: Value) -> Reply:
        engine.acl.check_value(session, value)
        if isinstance(value, Stream):
            if value.messages.last > MOST // 2 and not engine.loading:
                raise ReplyError("a stream has more messages than there can be")  # the next ones would pass the bound
            for group in value.groups.values():
                engine.streams.check_from_client(group, [group.leases.last_delivery()])
        expires_at = min(when + db.clock.now, INT64_MAX) if when and b"ABSTTL" not in options else when
        if 0 < expires_at <= db.clock.now and db.keyspace.expiring:
            db.delete(name)
            session.log([b"DEL", name])
        else:
            place(session, db, name, value, expires_at or None)
            session.log([b"RESTORE", name, b"%d" % expires_at, payload, b"REPLACE", b"ABSTTL"])
        return OK

    work = _work_of_load(payload)
    if work <= LONG:
        return commit(from_payload(payload, limit, storage))
    return session.aside(work, lambda: from_payload(payload, limit, storage), commit)


def _options(argv: Argv) -> set[bytes]:
    """The words among RESTORE's options, with their numbers checked."""
    found: set[bytes] = set()
    words = iter(argv[4:])
    for word in words:
        option = word.upper()
        if option in (b"REPLACE", b"ABSTTL"):
            found.add(option)
            continue
        number = next(words, None)
        if number is None:
            raise syntax_error()
        if option == b"IDLETIME" and b"FREQ" not in found:
            if to_integer(number) < 0:
                raise ReplyError("Invalid IDLETIME value, must be >= 0")
        elif option == b"FREQ" and b"IDLETIME" not in found:
            if not 0 <= to_integer(number) <= 255:
                raise ReplyError("Invalid FREQ value, must be >= 0 and <= 255")
        else:
            raise syntax_error()
        found.add(option)
    return found
