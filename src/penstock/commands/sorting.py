"""SORT: the elements of a list, a set or a sorted set in order, or what other keys say about them.

Numbers that are equal are ordered by the elements themselves, so the outcome is the same on every run. Where Redis
leaves it open, equal words under BY ... ALPHA, elements keep the order they had; a set, which has none, is put in
order first when the outcome is stored, because a replay of the log must store the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from penstock.engine.arguments import to_float, to_integer
from penstock.engine.keyspace import Database
from penstock.engine.session import Session
from penstock.engine.spec import Access, Argv, Beyond, Flag, Reach, Reply, command, found_keys, key
from penstock.protocol.errors import ReplyError, WrongType, syntax_error
from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.set import Set
from penstock.types.zset import SortedSet

Lookup = Callable[[bytes], bytes | None]


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

    @property
    def unsorted(self) -> bool:
        """BY a pattern without a star says: leave them as they are."""
        return self.by is not None and b"*" not in self.by


def _parse(argv: Argv, may_store: bool) -> _Request:
    request = _Request()
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
        elif option == b"GET":
            request.gets.append(following())
        else:
            raise syntax_error()
    return request


def _stored_key(argv: Argv) -> Iterable[int]:
    """Where SORT's STORE key is. What Redis calls a key when STORE comes twice: the last one."""
    found: list[int] = []
    at = 2
    while at < len(argv):
        option = argv[at].upper()
        if option == b"STORE" and at + 1 < len(argv):
            found = [at + 1]
        at += {b"LIMIT": 3, b"GET": 2, b"BY": 2, b"STORE": 2}.get(option, 1)
    return found


def _looks_up(argv: Argv) -> bool:
    """Whether BY or GET takes something from keys that only the elements tell."""
    try:
        request = _parse(argv, may_store=True)
    except ReplyError:
        return False  # the handler will refuse it
    return any(b"*" in pattern for pattern in (*request.gets, request.by or b""))


# -- from elements to a result --------------------------------------------------------------------------------


def _lookup(db: Database, pattern: bytes) -> Lookup:
    """What a pattern says about an element: the element itself, a string `weight_*`, a hash's field `user_*->age`."""
    if pattern == b"#":
        return lambda element: element
    before, star, after = pattern.partition(b"*")
    if not star:
        return lambda element: None
    suffix, arrow, name = after.partition(b"->")
    if not arrow or not name:
        suffix, name = after, b""

    def look(element: bytes) -> bytes | None:
        value = db.get(before + element + suffix)
        if name:
            return value.get(name) if type(value) is Hash else None
        if value is None or type(value) is bytes:
            return value
        return b"%d" % value if type(value) is int else bytes(value) if type(value) is bytearray else None

    return look


def _not_a_score() -> ReplyError:
    return ReplyError("One or more scores can't be converted into double")


def _to_score(text: bytes | None) -> float:
    """A weight as C's strtod reads it: blanks in front are fine, and what is missing or empty weighs nothing."""
    text = (text or b"").split(b"\0", 1)[0].lstrip()
    if not text:
        return 0.0
    score = to_float(text, _not_a_score)
    if math.isinf(score) and b"inf" not in text.lower():
        raise _not_a_score()
    return score


def _elements(db: Database, name: bytes, request: _Request) -> list[bytes]:
    """The elements before they are sorted."""
    value = db.get(name)
    kind = type(value)
    if value is None:
        return []
    if kind is Set:
        if request.store is not None and request.by is not None:
            return sorted(value, reverse=request.descending)
        return list(value)
    if kind is not List and kind is not SortedSet:
        raise WrongType
    elements = list(value)
    if request.unsorted and request.descending:
        elements.reverse()
    return elements


def _sort(db: Database, elements: list[bytes], request: _Request) -> None:
    look = _lookup(db, request.by) if request.by is not None else None
    if not request.alpha:
        scores = [(_to_score(look(element) if look else element), element) for element in elements]
        scores.sort(reverse=request.descending)
        elements[:] = [element for _, element in scores]
    elif look is None:
        elements.sort(reverse=request.descending)
    else:
        words = {element: look(element) for element in elements}
        # What has no word comes before what has one, even the empty one.
        elements.sort(key=lambda element: (words[element] is not None, words[element]), reverse=request.descending)


def _run(session: Session, name: bytes, request: _Request) -> list[bytes | None]:
    """The rows of the answer."""
    db = session.db
    elements = _elements(db, name, request)
    if not request.unsorted:
        _sort(db, elements, request)
    start = max(request.start, 0)
    chosen = elements[start:] if request.count < 0 else elements[start : start + request.count]
    if not request.gets:
        return list(chosen)
    lookups = [_lookup(db, pattern) for pattern in request.gets]
    return [look(element) for element in chosen for look in lookups]


# -- the commands ---------------------------------------------------------------------------------------------

_CATEGORIES = ["list", "set", "sortedset", "dangerous"]
_SYNTAX = "key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC | DESC] [ALPHA]"
_COST = "O(N + M log M) with N elements of which M are sorted"
_BEYOND = Beyond(Reach.DATABASE, "looks at keys that only the elements tell, with BY or GET", _looks_up)


@command(
    "SORT", arity=-2, flags=Flag.WRITE | Flag.DENYOOM | Flag.MOVABLEKEYS, group="list",
    keys=key(1, Access.READ) + found_keys(_stored_key, Access.WRITE), syntax=f"{_SYNTAX} [STORE destination]",
    cost=_COST, categories=_CATEGORIES, beyond=_BEYOND,
)  # fmt: skip
def sort(session: Session, argv: Argv) -> Reply:
    """Answer the elements of a list, set or sorted set in order of their numbers, or with ALPHA of their bytes.

    BY takes the weights from other keys: in `weight_*` the star stands for the element, `user_*->age` is a field of
    a hash, and a pattern without a star leaves the order alone. GET answers what such a pattern gives in place of the
    element, `#` being the element. STORE makes a list of the answer and answers its length.
    """
    request = _parse(argv, may_store=True)
    rows = _run(session, argv[1], request)
    if request.store is None:
        return rows
    if rows:
        session.db.set(request.store, List(row or b"" for row in rows))
    else:
        session.db.delete(request.store)
    return len(rows)


@command(
    "SORT_RO", arity=-2, flags=Flag.READONLY | Flag.MOVABLEKEYS, group="list", keys=key(1, Access.READ),
    syntax=_SYNTAX, cost=_COST, categories=_CATEGORIES, beyond=_BEYOND,
)  # fmt: skip
def sort_ro(session: Session, argv: Argv) -> Reply:
    """SORT without STORE, for where nothing may be written."""
    return _run(session, argv[1], _parse(argv, may_store=False))
