"""Kinds of commands: which may share a connection with others, and which change the connection.

One look-up in a dict answers it for a command's first word; only words that stand for several commands (CLIENT, XREAD)
need a second look. The server's table of commands (COMMAND) is not used here: it would cost a round trip before the
first command, and a proxy may not know it.

The names below (_SESSION, _TRANSACTION, _STREAMING, _PATIENCE) are listed by hand: no declaration says what a command
does to its connection, or where its timeout stands, and some of them exist in Redis and Valkey only.
tests/client/test_declared.py fails if the server declares a blocking command, or one of the groups connection,
transactions and pubsub, that is not decided here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.client.delivery import Command, State
from penstock.client.engine.declared import CONTAINERS


class Kind(enum.Enum):
    """How a command gets along with others on one connection."""

    ORDINARY = "ordinary"
    BLOCKING = "blocking"  # holds the connection up: needs one of its own for a while
    WAITING = "waiting"  # holds it up too, but asks about what was written on this very connection
    SESSION = "session"  # changes the connection's state, to be restored on the next one
    TRANSACTION = "transaction"  # catches the commands that follow it: needs a connection of its own
    STREAMING = "streaming"  # the replies do not match the commands any more
    FINAL = "final"  # has no reply if it succeeds; a second time it would reach a server that was started since


Arguments = Sequence[Any]


def _word(argument: Any) -> str:
    text = argument if isinstance(argument, str) else bytes(argument).decode("latin-1")
    return text.upper()


_CONTAINERS = CONTAINERS | {"XGROUP"}


def name_of(arguments: Arguments) -> str:
    """A command's name as a person writes it, with its subcommand.

    >>> name_of((b"client", "setname", "x")), name_of(("GET", "k"))
    ('CLIENT SETNAME', 'GET')
    """
    name = _word(arguments[0])
    if name in _CONTAINERS and len(arguments) > 1 and isinstance(arguments[1], str | bytes | bytearray | memoryview):
        return f"{name} {_word(arguments[1])}"
    return name


def as_command(arguments: Arguments, state: State) -> Command:
    """A command as a replay filter sees it."""
    name = name_of(arguments)
    is_split = isinstance(arguments[0], str | bytes) and len(arguments[0]) < len(name)
    return Command(name, tuple(arguments[1 + is_split :]), state)


_SESSION = frozenset(
    ["SELECT", "AUTH", "HELLO", "READONLY", "READWRITE", "RESET"]
    + [f"CLIENT {sub}" for sub in ("SETNAME", "SETINFO", "NO-EVICT", "NO-TOUCH", "TRACKING")]
)
_TRANSACTION = frozenset(["MULTI", "EXEC", "DISCARD", "WATCH", "UNWATCH"])
_STREAMING = frozenset(
    {
        "SUBSCRIBE",
        "PSUBSCRIBE",
        "SSUBSCRIBE",
        "UNSUBSCRIBE",
        "PUNSUBSCRIBE",
        "SUNSUBSCRIBE",
        "MONITOR",
        "SYNC",
        "PSYNC",
        "QUIT",
        "CLIENT REPLY",
    }
)


def _seconds(value: Any) -> float:
    return float(value.decode() if isinstance(value, bytes) else value)


def _last_seconds(arguments: Arguments) -> float:
    return _seconds(arguments[-1])


def _first_seconds(arguments: Arguments) -> float:
    return _seconds(arguments[1])


def _last_milliseconds(arguments: Arguments) -> float:
    return _seconds(arguments[-1]) / 1000


def options_of(arguments: Arguments, at: int, lengths: Mapping[str, int]) -> Iterator[tuple[int, str]]:
    """The options of a command, from place `at` on, each with its place. A group, a key or a member may be called like
    one: `lengths` says how many arguments follow an option, which are passed over.
    """
    while at < len(arguments):
        word = _word(arguments[at]) if isinstance(arguments[at], str | bytes) else ""
        yield at, word
        at += 1 + lengths.get(word, 0)


XREAD_OPTIONS = {"COUNT": 1, "BLOCK": 1, "GROUP": 2, "CLAIM": 1}
TREAD_OPTIONS = {"GROUP": 1, "RETRY": 2, "MAXBYTES": 1, "DEADLETTER": 1, "FORMAT": 1, "BLOCK": 1}


def _block_option(arguments: Arguments) -> float | None:
    """The milliseconds after BLOCK in XREAD or TREAD; None without it."""
    is_tread = _word(arguments[0]) == "TREAD"
    for at, word in options_of(arguments, 4 if is_tread else 1, TREAD_OPTIONS if is_tread else XREAD_OPTIONS):
        if word == "BLOCK":
            return _seconds(arguments[at + 1]) / 1000
        if word == "STREAMS":
            return None  # what follows are keys
    return None


# How long a blocking command may wait, in seconds; 0 is for ever, None is not at all.
_PATIENCE: dict[str, Callable[[Arguments], float | None]] = {
    **dict.fromkeys(["BLPOP", "BRPOP", "BRPOPLPUSH", "BLMOVE", "BZPOPMIN", "BZPOPMAX"], _last_seconds),
    **dict.fromkeys(["BLMPOP", "BZMPOP"], _first_seconds),
    **dict.fromkeys(["XREAD", "XREADGROUP", "TREAD"], _block_option),
    "WAIT": _last_milliseconds,
    "WAITAOF": _last_milliseconds,
}
MAY_WAIT = frozenset(_PATIENCE)
"""Names of commands that wait, or do not, by their arguments."""

WAITS = (Kind.BLOCKING, Kind.WAITING)

_SPECIAL: dict[str, Kind] = {
    **dict.fromkeys(_SESSION, Kind.SESSION),
    **dict.fromkeys(_TRANSACTION, Kind.TRANSACTION),
    **dict.fromkeys(_STREAMING, Kind.STREAMING),
    **dict.fromkeys(_PATIENCE, Kind.BLOCKING),
    **dict.fromkeys(["WAIT", "WAITAOF"], Kind.WAITING),
    "SHUTDOWN": Kind.FINAL,
}
_SPECIAL_WORDS = frozenset(name.partition(" ")[0] for name in _SPECIAL)

# First words as they are written by callers ("get", b"GET", "CLIENT SETNAME"), and whether they need a second look.
_ordinary: set[Any] = set()
PLAIN: set[Any] = set()
"""Those of them that are one word, and go on the wire as they are."""
_MOST_SPELLINGS = 4096  # a program that sends made-up commands must not fill the memory with them


def kind_of(arguments: Arguments) -> Kind:
    """The kind of a command; one look-up for an ordinary one."""
    head = arguments[0]
    if type(head) is bytearray:
        head = bytes(head)
    if head in _ordinary:
        return Kind.ORDINARY
    words = head.split() if isinstance(head, str | bytes) else [head]
    if not words:
        return Kind.ORDINARY  # the server will say what is wrong with it
    if _word(words[0]) not in _SPECIAL_WORDS:
        if len(_ordinary) < _MOST_SPELLINGS and isinstance(head, str | bytes):
            _ordinary.add(head)
            if len(words) == 1 and words[0] == head:
                PLAIN.add(head)
        return Kind.ORDINARY
    spelled = (*words, *arguments[1:])
    kind = _SPECIAL.get(name_of(spelled), Kind.ORDINARY)
    if kind in WAITS and patience(spelled) is None:
        return Kind.ORDINARY
    return kind


def patience(arguments: Arguments) -> float | None:
    """How many seconds a blocking command may wait; 0 is for ever, None if it does not wait."""
    try:
        return _PATIENCE[name_of(arguments)](arguments)
    except (KeyError, ValueError, IndexError, TypeError):
        return None  # not blocking, or malformed: the server answers at once
