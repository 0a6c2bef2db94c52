"""SORT: the elements of a list, a set or a sorted set in order, or values of other keys that they name.

Equal numbers are ordered by the elements themselves, so the result is the same on every run. Equal words under BY ...
ALPHA keep their order; Redis does not define one. A set has no order, so it is sorted first when the result is stored,
because a replay of the log must store the same.

Long work runs in a worker thread. BY and GET read keys that no lock covers, because they are not known before they are
read (`_Moment`). A copy of the table of keys is enough for strings, which do not change. Fields of hashes are looked up
in the thread; if one of those hashes has changed by the commit, the command runs again, on the loop. With STORE, the
stored list also belongs to the moment of the copy: the destination is locked until it is stored. The other keys may
change in between, so the log gets the list itself, not the command.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import TypeVar

from penstock.engine.arguments import to_float, to_integer
from penstock.engine.concurrency.long_work import LONG
from penstock.engine.declarations import Access, Argv, Beyond, Effect, Flag, Reach, Reply, command, found_keys, key
from penstock.engine.keyspace.databases import Database, Value
from penstock.engine.keyspace.key_views import KeyTable, copy_now, lookup_now
from penstock.engine.keyspace.observers import ChangedNames
from penstock.engine.session import Session
from penstock.freeing import LongList
from penstock.protocol.errors import ReplyError, WrongType, syntax_error
from penstock.protocol.resp import RawPieces, in_pieces
from penstock.types.hash import Hash
from penstock.types.kernels import chunks, skip
from penstock.types.kernels import sort as sort_in_chunks
from penstock.types.list import List
from penstock.types.set import Set, in_integer_order
from penstock.types.zset import SortedSet

T = TypeVar("T")
Get = Callable[[bytes], Value | None]
Lookup = Callable[[bytes], bytes | None]
MUCH_LARGER = 4
"""A database with more keys than so many times the elements is not copied."""
_NONE = List()  # what a missing key reads as; never changed


@dataclass(slots=True)
class _Request:
    """SORT's arguments."""

    by: bytes | None = None
    gets: list[bytes] = field(default_factory=list)
    start: int = 0
    count: int = -1
    descending: bool = False
    alpha: bool = False
    store: bytes | None = None
    intset: int = 0  # integers up to which a set is ordered
    scripted: bool = False  # a script gets the same order every time

    @property
    def unsorted(self) -> bool:
        """A BY pattern without a star keeps the elements as they are."""
        return self.by is not None and b"*" not in self.by

    @property
    def reads_other_keys(self) -> bool:
        """Whether a pattern names keys that depend on the elements, so that they are not known in advance."""
        return any(b"*" in pattern for pattern in (self.by or b"", *self.gets))

    def lookups(self, find: Callable[[bytes], Lookup]) -> tuple[Lookup | None, list[Lookup]]:
        """What BY and each GET give for an element; `find` looks a pattern up."""
        return find(self.by) if self.by is not None and not self.unsorted else None, list(map(find, self.gets))

    def chosen(self, length: int) -> tuple[int, int]:
        """LIMIT: the start and the count of the rows, out of so many elements."""
        start = min(max(self.start, 0), length)
        return start, length - start if self.count < 0 else min(self.count, length - start)


def _check_pattern(session: Session | None, option: str) -> None:
    """Refuse a pattern to a user who may not read every key, because the keys depend on the elements."""
    if session is not None and not session.user.unrestricted:
        assert session.current is not None, "a restricted user reached the fast path"
        if not session.user.may_read_every_key(*session.current):
            raise ReplyError(f"{option} option of SORT denied due to insufficient ACL permissions.")


def _parse(argv: Argv, may_store: bool, session: Session | None = None) -> _Request:
    """SORT's arguments; `session` tells whether its user may use the patterns."""
    request = _Request()
    if session is not None:
        request.intset, request.scripted = session.engine.config.set_max_intset_entries, session.scripted
    words = iter(argv[2:])

    def following() -> bytes:
        word = next(words, None)
        if word is None:
            raise syntax_error()
        return word

    for word in words:
        option = word.upper()
        if option == b"ASC" or option == b"DESC":
            request.descending = option == b"DESC"
        elif option == b"ALPHA":
            request.alpha = True
        elif option == b"LIMIT":
            start, count = following(), following()
            request.start, request.count = to_integer(start), to_integer(count)
        elif option == b"STORE" and may_store:
            request.store = following()
        elif option == b"BY":
            request.by = following()
            if not request.unsorted:
                _check_pattern(session, "BY")
        elif option == b"GET":
            request.gets.append(following())
            _check_pattern(session, "GET")
        else:
            raise syntax_error()
    return request


def _stored_key(argv: Argv) -> Iterable[int]:
    """The position of SORT's STORE key. If STORE comes twice it is the last one, as in Redis."""
    found: list[int] = []
    at = 2
    while at < len(argv):
        option = argv[at].upper()
        if option == b"STORE" and at + 1 < len(argv):
            found = [at + 1]
        at += {b"LIMIT": 3, b"GET": 2, b"BY": 2, b"STORE": 2}.get(option, 1)
    return found


def _looks_up(argv: Argv) -> bool:
    """Whether BY or GET reads keys that depend on the elements."""
    try:
        request = _parse(argv, may_store=True)
    except ReplyError:
        return False  # the handler will refuse it
    return any(b"*" in pattern for pattern in (*request.gets, request.by or b""))


# -- from elements to a result --------------------------------------------------------------------------------


class _Changes(Exception):
    """A string that commands edit in place was found in a thread, where it must not be read."""


def _changes(size: int) -> None:
    raise _Changes


def _lookup(get: Get, pattern: bytes, keep: Callable[[int], None] | None = None) -> Lookup:
    """The value of a pattern for an element: the element itself, a string `weight_*`, a field of a hash `user_*->age`.

    `keep` is called before a string that will be stored is copied, once for each element that leads to it.
    """
    if pattern == b"#":
        return lambda element: element
    before, star, after = pattern.partition(b"*")
    if not star:
        return lambda element: None
    suffix, _, name = after.partition(b"->")
    if not name:
        suffix = after

    def look(element: bytes) -> bytes | None:
        value = get(before + element + suffix)
        if name:
            return value.get(name) if type(value) is Hash else None
        if value is None or type(value) is bytes:
            return value
        if type(value) is bytearray:
            if keep is not None:
                keep(len(value))
            return bytes(value)
        return b"%d" % value if type(value) is int else None

    return look


class _Moment:
    """What patterns give for the elements of a value at one moment, usable in any thread.

    A string is looked up in a copy of the table of keys, if that is not too large. Other keys are looked up where they
    are: `is_past` tells the loop that one of them has changed since.
    """

    def __init__(self, db: Database, value: List | Set | SortedSet) -> None:
        self._db, self._data, self._value = db, db.data, value
        self._table: KeyTable | None = None
        self._changed: ChangedNames | None = None
        self._live: list[tuple[bytes, bytes]] = []  # before and after the star, of the patterns that are looked up live
        self._unread: set[bytes] = set()  # changed names that no element leads to

    def find(self, pattern: bytes) -> Lookup:
        """`_lookup` of a pattern. It raises _Changes in a thread where it cannot know what was there."""
        before, star, after = pattern.partition(b"*")
        if not star:
            return _lookup(self._db.get, pattern)
        suffix, _, name = after.partition(b"->")
        if not name and len(self._db) <= MUCH_LARGER * len(self._value):
            self._table = self._table or copy_now(self._db)
            return _lookup(self._table.get, pattern, _changes)
        self._changed = self._changed or self._db.observed.note_changes()
        self._live.append((before, suffix if name else after))
        return _lookup(lookup_now(self._db), pattern, _changes)

    def sift(self) -> None:
        """Look through the names that changed so far; in the thread, so that `is_past` has little left to do."""
        if self._changed is not None:
            names = self._changed.names.copy()
            if not self._leads_to_any(names):
                self._unread = names

    def is_past(self) -> bool:
        """Whether a key that was looked up live has changed, or may have."""
        if self._changed is None:
            return False
        return self._db.data is not self._data or self._leads_to_any(self._changed.names - self._unread)

    def _leads_to_any(self, names: set[bytes]) -> bool:
        elements = {
            name[len(before) : len(name) - len(suffix)]
            for name in names
            for before, suffix in self._live
            if len(name) >= len(before) + len(suffix) and name.startswith(before) and name.endswith(suffix)
        }
        if not isinstance(self._value, List):
            return any(element in self._value for element in elements)
        return bool(elements) and not all(elements.isdisjoint(some) for some in chunks(self._value))


def _not_a_score() -> ReplyError:
    return ReplyError("One or more scores can't be converted into double")


def _to_score(text: bytes | None) -> float:
    """A weight as C's strtod reads it: leading blanks are allowed, and a missing or empty value weighs nothing."""
    if text is not None and text.isdigit() and len(text) < 300:  # most are, and such text is always a number
        return float(text)
    text = (text or b"").split(b"\0", 1)[0].lstrip()
    if not text:
        return 0.0
    score = to_float(text, _not_a_score)
    if math.isinf(score) and b"inf" not in text.lower():
        raise _not_a_score()
    return score


def _find(db: Database, name: bytes) -> List | Set | SortedSet:
    value = db.get(name)
    if value is None:
        return _NONE
    if isinstance(value, List | Set | SortedSet):
        return value
    raise WrongType


def _elements(value: List | Set | SortedSet, request: _Request) -> Iterable[bytes]:
    """The elements before they are sorted."""
    if isinstance(value, Set):
        if (request.store is not None and request.by is not None) or (request.scripted and request.unsorted):
            return _backwards_if(request.descending, sort_in_chunks(value))
        return (in_integer_order(value, request.intset) if request.unsorted else None) or value
    if request.unsorted and request.descending:
        return reversed(value) if isinstance(value, List) else (row[1] for row in value.walk(0, len(value), True))
    return value


def _sorted(elements: Iterable[bytes], request: _Request, look: Lookup | None) -> Iterator[bytes]:
    if not request.alpha:
        rows = ((_to_score(look(element) if look else element), element) for element in elements)
        runs = sort_in_chunks(rows, hint=itemgetter(0))
        first = next(runs, [])  # now, because a word that is no number is an error even if no row is asked for
        return map(itemgetter(1), _backwards_if(request.descending, chain([first], runs)))
    if look is None:
        return _backwards_if(request.descending, sort_in_chunks(elements))
    # Elements without a word come before those with one, even an empty one; equal words keep their positions.
    step = -1 if request.descending else 1
    words = (
        (word is not None, word or b"", step * at, element)
        for at, element in enumerate(elements)
        for word in (look(element),)
    )
    return map(itemgetter(3), _backwards_if(request.descending, sort_in_chunks(words)))


def _backwards_if(descending: bool, runs: Iterator[list[T]]) -> Iterator[T]:
    """The elements of these runs, from the last if descending."""
    if not descending:
        for run in runs:
            yield from run
        return
    held = list(runs)
    while held:
        yield from reversed(held.pop())


def _rows(
    value: List | Set | SortedSet, request: _Request, by: Lookup | None, gets: list[Lookup]
) -> Iterator[bytes | None]:
    """The rows of the answer."""
    elements = iter(_elements(value, request))
    if not request.unsorted:
        elements = _sorted(elements, request, by)
    start, count = request.chosen(len(value))
    skip(elements, start)
    chosen = islice(elements, count)
    return (look(element) for element in chosen for look in gets) if gets else chosen


def _answer(session: Session, name: bytes, request: _Request) -> Reply:
    db = session.db
    value = _find(db, name)

    def at_once(value: List | Set | SortedSet) -> list[bytes | None]:
        return list(_rows(value, request, *request.lookups(partial(_lookup, db.get))))

    if len(value) <= LONG:
        return at_once(value)
    protocol = session.protocol
    count = request.chosen(len(value))[1] * max(len(request.gets), 1)
    moment = _Moment(db, value)
    by, gets = request.lookups(moment.find)

    def compute() -> RawPieces | None:
        try:
            made = in_pieces(list, count, _rows(value, request, by, gets), protocol)
        except _Changes:
            return None
        moment.sift()
        return made

    return session.aside(
        len(value), compute, lambda made: at_once(_find(db, name)) if made is None or moment.is_past() else made
    )


def _store(session: Session, name: bytes, destination: bytes, request: _Request) -> Reply:
    db = session.db
    value = _find(db, name)

    def keep(size: int) -> None:
        session.engine.require_memory([], size)

    def at_once(value: List | Set | SortedSet) -> List:
        by, _ = request.lookups(partial(_lookup, db.get))
        gets = [_lookup(db.get, pattern, keep) for pattern in request.gets]
        return _list_of(_rows(value, request, by, gets))

    def commit(result: List) -> int:
        if result:
            db.set(destination, result)
        else:
            db.delete(destination)
        return len(result)

    if len(value) <= LONG:
        return commit(at_once(value))
    if not request.reads_other_keys:
        return session.aside(len(value), lambda: at_once(value), commit)
    moment = _Moment(db, value)
    by, gets = request.lookups(moment.find)

    def compute() -> tuple[List, Argv] | None:
        try:
            result = _list_of(_rows(value, request, by, gets))
        except _Changes:
            return None
        logged = LongList([b"RPUSH", destination])
        for some in chunks(result):
            logged += some
        moment.sift()
        return result, logged

    def commit_fixed(made: tuple[List, Argv] | None) -> int:
        if made is None or moment.is_past():
            return commit(at_once(_find(db, name)))
        result, logged = made
        session.log([b"DEL", destination], *([logged] if result else ()))
        return commit(result)

    return session.aside(len(value), compute, commit_fixed)


def _list_of(rows: Iterable[bytes | None]) -> List:
    """The elements that STORE keeps: a missing value is an empty string."""
    result = List()
    for some in chunks(rows):
        result.extend(row or b"" for row in some)
    return result


def _growth(session: Session, argv: Argv) -> int:
    """The memory that STORE takes for list slots; values that GET finds are shared, or counted when they are copied."""
    request = _parse(argv, may_store=True)
    if request.store is None:
        return 0
    return 16 * request.chosen(len(_find(session.db, argv[1])))[1] * max(len(request.gets), 1)


# -- the commands ---------------------------------------------------------------------------------------------

_CATEGORIES = ["list", "set", "sortedset", "dangerous"]
_SYNTAX = "key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC | DESC] [ALPHA]"
_COST = "O(N + M log M) with N elements of which M are sorted"
_BEYOND = Beyond(Reach.DATABASE, "looks at keys that depend on the elements, with BY or GET", _looks_up)


@command(
    "SORT",
    arity=-2,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.MOVABLEKEYS,
    keys=key(1, Access.READ) + found_keys(_stored_key, Access.WRITE, Effect.OVERWRITE),
    group="list",
    syntax=f"{_SYNTAX} [STORE destination]",
    cost=_COST,
    categories=_CATEGORIES,
    beyond=_BEYOND,
    grows=_growth,
    check_words=lambda session, argv: _parse(argv, may_store=True),
)
def sort(session: Session, argv: Argv) -> Reply:
    """Answer the elements of a list, set or sorted set, ordered as numbers or, with ALPHA, as bytes.

    BY takes the weights from other keys: in `weight_*` the star stands for the element, `user_*->age` is a field of a
    hash, and a pattern without a star keeps the order. GET answers the value of such a pattern instead of the element;
    `#` is the element itself. STORE stores the answer as a list and answers its length.
    """
    request = _parse(argv, may_store=True, session=session)
    if request.store is None:
        return _answer(session, argv[1], request)
    return _store(session, argv[1], request.store, request)


@command(
    "SORT_RO",
    arity=-2,
    flags=Flag.READONLY | Flag.MOVABLEKEYS,
    keys=key(1, Access.READ),
    group="list",
    syntax=_SYNTAX,
    cost=_COST,
    categories=_CATEGORIES,
    beyond=_BEYOND,
)
def sort_ro(session: Session, argv: Argv) -> Reply:
    """SORT without STORE, which only reads."""
    return _answer(session, argv[1], _parse(argv, may_store=False, session=session))
