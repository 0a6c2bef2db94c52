"""What a TREAD asks for: its options, the keys it names, and what it waits for if it blocks.

A member of a group sends the same words again and again, so what they ask for is kept (`_KNOWN`): to take them apart is
a sixth of a read.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.commands.streams import refuse_repeated, to_number
from penstock.engine.arguments import INT64_MAX
from penstock.engine.declarations import Access, Argv
from penstock.engine.keyspace.databases import Value
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.types.stream.groups import Group
from penstock.types.stream.lease_chunk import MOST_LIMIT
from penstock.types.stream.messages import Messages
from penstock.types.stream.stream import Stream


@dataclass(slots=True)
class Read:
    """A TREAD's arguments."""

    key: bytes
    offset: int | None  # None is `$`: only new messages
    count: int
    wait: int | None = None  # milliseconds; None does not block, 0 blocks for ever
    group: bytes | None = None
    retry: tuple[int, int] | None = None
    max_bytes: int | None = None
    dead_letter: bytes | None = None
    limit: int = 0  # of attempts
    reserve: bool = False
    with_lease: bool = False
    consumer: bytes | None = None
    release: bool = False
    also: tuple[bytes, ...] = ()  # more streams, read as members of groups of the same name
    fair: bool = False
    with_info: bool = False
    with_time: bool = False
    arrow: bool = False
    compressed: bool = False  # Arrow only: nodes that are stored compressed may be sent compressed
    only_new: bool = False  # the offset was given as `$`
    origin: weakref.ref[Stream] | None = None  # the stream it waits on, if there was one; `offset` is then the next one

    # What a blocked read waits for: engine.blocking.Wish.

    def came_upon(self, value: Value | None) -> bool:
        """Whether this is the stream that the key held when the read came."""
        return self.origin is not None and self.origin() is value

    def goes_on_with(self, key: bytes, value: Value | None) -> None:
        self.origin = weakref.ref(value) if type(value) is Stream else None

    @property
    def shared(self) -> bool:
        """A plain read removes nothing."""
        return self.group is None

    def same(self) -> object:
        if self.group is None:
            at = id(self.origin()) if self.only_new and self.origin is not None else None
            form = self.with_info, self.with_time, self.arrow, self.compressed
            return self.offset, self.count, self.max_bytes, form, self.only_new, at
        return self.group

    def is_met(self, session: Session) -> bool:
        stream = session.db.get(self.key)
        if type(stream) is not Stream:
            return False
        if self.group is None:
            if self.only_new and not self.came_upon(stream):
                return (
                    stream.messages.first <= stream.messages.last
                )  # all messages of a stream that replaced this one are new
            assert self.offset is not None
            return self.offset <= stream.messages.last
        group = stream.groups.get(self.group)
        if group is None:
            return True  # the read creates it
        engine = session.engine
        streams = engine.streams
        now, due_by = streams.lease_time(), streams.due_by()
        if group.has_work(stream.messages, now, engine.config.stream_max_pending, due_by):
            return True
        self.wait_for_retry(session, group)
        return False

    def wait_for_retry(self, session: Session, group: Group) -> None:
        """Wake a blocked member when a retry falls due, or a message becomes visible."""
        streams = session.engine.streams
        due = group.next_deadline(session.engine.config.stream_max_pending, streams.grace.until)
        if due is not None:
            streams.wake_at(session.db, self.key, due)

    def deadline(self, session: Session) -> int:
        """Until when it blocks, from now on."""
        return min(session.db.clock.now + self.wait, INT64_MAX) if self.wait else 0

    @classmethod
    def parse(cls, argv: Argv) -> Read:
        """What a TREAD asks for. It may be shared: copy it before anything is noted in it."""
        words = tuple(argv)
        if (known := _KNOWN.get(words)) is not None:
            return known
        read = cls._parse(argv)
        if read.group is not None and sum(map(len, argv)) < _SHORT:
            if len(_KNOWN) == _MOST_KNOWN:
                _KNOWN.clear()
            _KNOWN[words] = read
        return read

    @classmethod
    def _parse(cls, argv: Argv) -> Read:
        offset = None if argv[2] == b"$" else to_number(argv[2], "offset")
        read = cls(argv[1], offset, to_number(argv[3], "count"), only_new=offset is None)
        seen: set[bytes] = set()
        at = 4
        while at < len(argv):
            word = argv[at].upper()
            size = _SIZES.get(word) or _size(argv, at)
            if size is None or at + size > len(argv):
                shown = argv[at][:64].decode(errors="replace")
                raise ReplyError(f"unknown or incomplete option '{shown}' of TREAD")
            refuse_repeated(seen, word, "TREAD")
            read._take(word, argv[at + 1 : at + size])
            at += size
        if read.group is None and offset == 0:
            raise ReplyError("offset must be at least 1; offsets start at 1, and 0 is only for a new group")
        if not _PLAIN.issuperset(seen):
            read._check(seen)
        return read

    def _take(self, word: bytes, values: list[bytes]) -> None:
        if word == b"BLOCK":
            self.wait = to_number(values[0], "BLOCK")
        elif word == b"GROUP":
            self.group = values[0]
        elif word == b"RETRY":
            retry, expire = to_number(values[0], "RETRY's retry-ms", 1), to_number(values[1], "RETRY's expire-ms")
            self.retry = (retry, expire)
        elif word == b"MAXBYTES":
            self.max_bytes = to_number(values[0], "MAXBYTES", 1)
        elif word == b"DEADLETTER":
            self.dead_letter = values[0]
        elif word == b"MAXATTEMPTS":
            self.limit = to_number(values[0], "MAXATTEMPTS", 1)
            if self.limit > MOST_LIMIT:
                raise ReplyError(f"MAXATTEMPTS must be at most {MOST_LIMIT}")
        elif word == b"CONSUMER":
            self.consumer = values[0]
        elif word == b"ALSO":
            self.also = tuple(values[1:])
        elif word in _SWITCHES:
            setattr(self, _SWITCHES[word], True)
        elif values[0].upper() == b"ARROW":
            self.arrow = True
        else:
            raise ReplyError(f"unknown FORMAT '{values[0][:64].decode(errors='replace')}'; there is ARROW")

    def _check(self, seen: set[bytes]) -> None:
        if self.retry is not None and self.group is None:
            raise ReplyError("RETRY needs GROUP: only a group waits for acknowledgements")
        if self.dead_letter is not None and self.retry is None:
            raise ReplyError("DEADLETTER needs RETRY: only what is retried can expire")
        if self.dead_letter in (self.key, *self.also):
            raise ReplyError("DEADLETTER must be another key than the stream's own")
        for word in (b"MAXATTEMPTS", b"RESERVE", b"WITHLEASE"):
            if word in seen and self.retry is None:
                raise ReplyError(f"{word.decode()} needs RETRY: without it a message is done when it is delivered")
        if self.consumer is not None and self.group is None:
            raise ReplyError("CONSUMER needs GROUP: it is the name of a member")
        if self.release and (self.consumer is None or self.retry is None):
            raise ReplyError("RELEASE needs CONSUMER and RETRY: it gives back what a name holds")
        if self.also and self.group is None:
            raise ReplyError("ALSO needs GROUP: only a group reads several streams")
        if len({self.key, *self.also}) <= len(self.also):
            raise ReplyError("ALSO names a stream twice")
        if self.fair and not self.also:
            raise ReplyError("FAIR needs ALSO: it takes turns among several streams")
        if self.with_time and self.group is not None:
            raise ReplyError("WITHTIME is for reads without GROUP; WITHLEASE gives the time to a member")
        if self.compressed and not self.arrow:
            raise ReplyError("COMPRESSED needs FORMAT ARROW: only record batches may be compressed")


_SIZES = {
    b"BLOCK": 2, b"GROUP": 2, b"RETRY": 3, b"MAXBYTES": 2, b"DEADLETTER": 2, b"WITHINFO": 1, b"FORMAT": 2,
    b"COMPRESSED": 1, b"MAXATTEMPTS": 2, b"RESERVE": 1, b"WITHLEASE": 1, b"CONSUMER": 2, b"RELEASE": 1,
    b"FAIR": 1, b"WITHTIME": 1,
}  # fmt: skip
_SWITCHES = {
    b"WITHINFO": "with_info", b"COMPRESSED": "compressed", b"RESERVE": "reserve", b"WITHLEASE": "with_lease",
    b"RELEASE": "release", b"FAIR": "fair", b"WITHTIME": "with_time",
}  # fmt: skip
_PLAIN = frozenset([b"BLOCK", b"GROUP", b"MAXBYTES", b"WITHINFO", b"FORMAT"])  # those that go with any others


_KNOWN: dict[tuple[bytes, ...], Read] = {}  # reads of groups, by their words
_MOST_KNOWN = 1000
_SHORT = 1000  # bytes that such words may have


def _size(argv: Sequence[bytes], at: int) -> int | None:
    """The words of the option at a position; None if there is no such option."""
    word = argv[at].upper()
    if word == b"ALSO":  # the only one that says itself how many words it has
        count = argv[at + 1] if at + 1 < len(argv) else b""
        return 2 + int(count) if count.isdigit() and 0 < len(count) < 7 and int(count) else None
    return _SIZES.get(word)


def _options(argv: Sequence[bytes]) -> dict[bytes, int]:
    """The positions of a TREAD's options; stops at an unknown word."""
    found: dict[bytes, int] = {}
    at = 4
    while at < len(argv) and (size := _size(argv, at)) is not None:
        found[argv[at].upper()] = at
        at += size
    return found


def tread_access(argv: Sequence[bytes]) -> Access:
    return Access.UPDATE if b"GROUP" in _options(argv) else Access.READ


def dead_letter_key(argv: Sequence[bytes]) -> Iterable[int]:
    at = _options(argv).get(b"DEADLETTER", len(argv))
    return [at + 1] if at + 1 < len(argv) else []


def also_keys(argv: Sequence[bytes]) -> Iterable[int]:
    at = _options(argv).get(b"ALSO")
    return range(at + 2, min(at + 2 + int(argv[at + 1]), len(argv))) if at is not None else []


@dataclass(slots=True)
class SeveralReads:
    """What a blocked read of several streams waits for: engine.blocking.Wish."""

    group: bytes
    reads: list[Read]

    @property
    def shared(self) -> bool:
        return False

    def same(self) -> object:
        return self.group, *[read.key for read in self.reads]

    def is_met(self, session: Session) -> bool:
        return any(read.is_met(session) for read in self.reads)

    def came_upon(self, value: Value | None) -> bool:
        return any(read.came_upon(value) for read in self.reads)

    def goes_on_with(self, key: bytes, value: Value | None) -> None:
        for read in self.reads:
            if read.key == key:
                read.goes_on_with(key, value)


def still_waiting(session: Session, stream: Stream | None) -> Read | None:
    """The waiting read as it was when it came, if the key still holds the same stream."""
    wish = session.waiter.wish if session.waiter is not None else None
    reads = [wish] if isinstance(wish, Read) else wish.reads if isinstance(wish, SeveralReads) else []
    return next((read for read in reads if read.came_upon(stream)), None)


def only_new(session: Session, stream: Stream | None, messages: Messages) -> int:
    """The offset that `$` stands for: the next one when the read came.

    If the key was deleted or replaced while the read waited, all messages of the new stream are new, as `tail -F`
    continues with a file that was replaced.
    """
    if session.waiter is None:
        return messages.last + 1
    first = still_waiting(session, stream)
    return first.offset if first is not None and first.offset is not None else messages.first
