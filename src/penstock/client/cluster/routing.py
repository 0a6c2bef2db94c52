"""From a command to its slot: which of its arguments are keys, and whether they may travel together.

The server's own table (COMMAND) says where keys stand, so that commands of modules and of later versions are routed
too. Commands whose keys move with their arguments (EVAL, XREAD, ZUNIONSTORE ...) are marked there and looked up by name
here, in a table that is made from the declarations of Penstock's commands (engine/declared.py) and in a list of those
that Redis and Valkey alone have. A command that is marked and unknown here is refused by name.

Rejected: asking the server (COMMAND GETKEYS) for each such command. It costs a round trip in the middle of a pipeline,
and answers wrongly for EVAL without keys before Redis 7.0 (redis#9493).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.client.cluster.errors import CrossSlotRefused, NotRoutable
from penstock.client.engine.command_kinds import MAY_WAIT, TREAD_OPTIONS, XREAD_OPTIONS, options_of
from penstock.client.engine.declared import COUNTED_KEYS, KEYED_SUBCOMMANDS, PREFIXES
from penstock.protocol.slots import key_slot

Arguments = Sequence[Any]
KeyFinder = Callable[[Arguments], Sequence[Any]]


class Shape(NamedTuple):
    """The facts about a command that routing needs."""

    name: str
    find: KeyFinder | None = None
    """Its keys among its arguments; None for a command that has none."""
    single: bool = False
    """Exactly one key, and it is the first argument, and it is answered at once, and not refused here: the short way.
    """
    reads: bool = False
    """It changes nothing."""
    unknown_keys: bool = False
    """The server says that the keys move, and does not say how."""


class Route(NamedTuple):
    """Where one command must go."""

    slot: int | None
    """None: it has no key and may go to any node."""
    keys: tuple[bytes, ...]
    reads: bool


def encoded(key: Any) -> bytes:
    """A key as it travels."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytearray | memoryview):
        return bytes(key)
    return str(key).encode()


# -- commands whose keys move ---------------------------------------------------------------------------------


def _counted(at: int, also: int | None = None) -> KeyFinder:
    """Keys that follow their number at argument `at`; and one more key before it, for what stores."""

    def find(arguments: Arguments) -> Sequence[Any]:
        count = int(arguments[at])
        keys = arguments[at + 1 : at + 1 + count]
        return keys if also is None else (arguments[also], *keys)

    return find


def _after_streams(arguments: Arguments) -> Sequence[Any]:
    """XREAD, XREADGROUP: half of what follows the word STREAMS."""
    for at, word in options_of(arguments, 1, XREAD_OPTIONS):
        if word == "STREAMS":
            rest = arguments[at + 1 :]
            return rest[: len(rest) // 2]
    return ()


def _first_and_store(begin: int, lengths: Mapping[str, int], *words: str) -> KeyFinder:
    """SORT, GEORADIUS: the first argument, and what follows the last option such as STORE; options begin at `begin`."""

    def find(arguments: Arguments) -> Sequence[Any]:
        stored = [arguments[at + 1] for at, word in options_of(arguments[:-1], begin, lengths) if word in words]
        return (arguments[1], *stored[-1:])

    return find


def _migrated(arguments: Arguments) -> Sequence[Any]:
    """MIGRATE host port key|"" ... [KEYS key ...]"""
    if arguments[3] not in ("", b""):
        return (arguments[3],)
    words = [encoded(word).upper() for word in arguments]
    return arguments[words.index(b"KEYS") + 1 :]


_GEO_OPTIONS = {"COUNT": 1, "STORE": 1, "STOREDIST": 1}


_MOVING: dict[str, KeyFinder] = {
    **{name: _counted(at, also) for name, (at, also) in COUNTED_KEYS.items()},
    # By hand, because their declarations find the keys with a function, which a table cannot hold:
    **dict.fromkeys(["XREAD", "XREADGROUP"], _after_streams),
    "SORT": _first_and_store(2, {"BY": 1, "GET": 1, "LIMIT": 2, "STORE": 1}, "STORE"),
    "TREAD": _first_and_store(4, TREAD_OPTIONS, "DEADLETTER"),
    # Of Redis and Valkey alone:
    **dict.fromkeys(["SDIFFCARD", "SUNIONCARD"], _counted(1)),
    "SORT_RO": _first_and_store(2, {}),
    "GEORADIUS": _first_and_store(6, _GEO_OPTIONS, "STORE", "STOREDIST"),
    "GEORADIUSBYMEMBER": _first_and_store(5, _GEO_OPTIONS, "STORE", "STOREDIST"),
    "MIGRATE": _migrated,
}
_KEYED_SUBCOMMANDS = {
    **KEYED_SUBCOMMANDS,
    # Of Redis and Valkey alone; in every version the key follows the subcommand:
    **dict.fromkeys(
        [f"XGROUP {word}" for word in ("CREATE", "CREATECONSUMER", "DELCONSUMER", "DESTROY", "SETID")], (2, 2, 1)
    ),
    **dict.fromkeys(["XINFO GROUPS", "XINFO CONSUMERS"], (2, 2, 1)),
}
_CONTAINERS = frozenset(name.partition(" ")[0] for name in _KEYED_SUBCOMMANDS)


def _ranged(first: int, last: int, step: int) -> KeyFinder:
    """Keys at fixed places; a negative last counts from the end."""

    def find(arguments: Arguments) -> Sequence[Any]:
        end = last if last >= 0 else len(arguments) + last
        return arguments[first : end + 1 : step]

    return find


# -- the table ------------------------------------------------------------------------------------------------


class CommandTable:
    """Shapes by name, as COMMAND describes them. Immutable once made, but for a cache of spellings."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self._shapes = dict(shapes)
        self._spelled: dict[str | bytes, Shape] = {}  # "set", b"SET": as callers write them; bounded by _MOST_SPELLINGS
        self.singles: set[str | bytes] = {name for name, shape in shapes.items() if shape.single}
        """Spellings of commands that have one key, their first argument: most of all that is sent."""

    @classmethod
    def parse(cls, reply: Iterable[Any]) -> CommandTable:
        """From the reply to COMMAND, of any version."""
        shapes: dict[str, Shape] = {}
        for row in reply:
            name = encoded(row[0]).decode().upper()
            flags = {encoded(flag).decode().lower() for flag in row[2]}
            shapes[name] = _shape(name, flags, int(row[3]), int(row[4]), int(row[5]))
        table = cls(shapes)
        for name, words in PREFIXES.items():
            if name in shapes:
                table._shapes[name] = Shape(name, table._keys_after(words))
        return table

    def shape(self, arguments: Arguments) -> Shape:
        head = arguments[0]
        found = self._spelled.get(head)
        return found if found is not None else self._look_up(head)

    def keys_of(self, arguments: Arguments) -> Sequence[Any]:
        """The keys of a command, as they were given."""
        if isinstance(head := arguments[0], str) and " " in head:
            arguments = (*head.split(), *arguments[1:])
        shape = self.shape(arguments)
        if shape.unknown_keys:
            raise NotRoutable(
                f"{shape.name} has keys in places that only its server knows: send it to a node (node=...)"
            )
        if shape.find is None:
            return ()
        try:
            return shape.find(arguments)
        except (ValueError, IndexError, TypeError):
            return ()  # malformed: any node will say what is wrong with it

    def _keys_after(self, words: int) -> KeyFinder:
        """The keys of LAZY and ONCE: a whole command follows after so many words."""
        return lambda arguments: self.keys_of(arguments[words:])

    def route(self, arguments: Arguments) -> Route:
        """Slot and keys; CrossSlotRefused if the keys are of several slots."""
        keys = tuple(map(encoded, self.keys_of(arguments)))
        shape = self.shape(arguments)
        if not keys:
            return Route(None, (), shape.reads)
        slot = key_slot(keys[0])
        if len(keys) > 1 and any(key_slot(key) != slot for key in keys):
            raise CrossSlotRefused(shape.name, {key: key_slot(key) for key in keys})
        return Route(slot, keys, shape.reads)

    def _look_up(self, head: str | bytes) -> Shape:
        name = encoded(head).decode("utf-8", "replace").upper().partition(" ")[0]
        shape = self._shapes.get(name) or Shape(name)  # unknown to the servers: any of them will say so
        if len(self._spelled) < _MOST_SPELLINGS:
            self._spelled[head] = shape
            if shape.single and b" " not in encoded(head):
                self.singles.add(head)
        return shape


NOT_IN_A_CLUSTER: Mapping[str, str] = {
    **dict.fromkeys(["MOVE", "SWAPDB"], "it has one database; rename() moves a key within a hash tag"),
    **dict.fromkeys(["REPLICAOF", "SLAVEOF"], "use CLUSTER REPLICATE with a node (node=...)"),
    "FAILOVER": "use CLUSTER FAILOVER with a node (node=...)",
}
"""What every node of a cluster refuses, and what to do instead. The server's table has no flag for it."""

_MOST_SPELLINGS = 4096  # a program that sends made-up commands must not fill the memory with them


def _shape(name: str, flags: set[str], first: int, last: int, step: int) -> Shape:
    reads = "readonly" in flags
    if name in _MOVING:
        return Shape(name, _MOVING[name], reads=reads)
    if name in _CONTAINERS:
        return Shape(name, _in_container(name), reads=reads)
    if "movablekeys" in flags:
        return Shape(name, reads=reads, unknown_keys=True)
    if not first:
        return Shape(name, reads=reads)
    single = (first, last) == (1, 1) and name not in MAY_WAIT and name not in NOT_IN_A_CLUSTER
    return Shape(name, _ranged(first, last, max(step, 1)), single=single, reads=reads)


def _in_container(name: str) -> KeyFinder:
    finders = {
        sub.partition(" ")[2]: _ranged(*places)
        for sub, places in _KEYED_SUBCOMMANDS.items()
        if sub.startswith(f"{name} ")
    }

    def find(arguments: Arguments) -> Sequence[Any]:
        subcommand = encoded(arguments[1]).decode("utf-8", "replace").upper() if len(arguments) > 2 else ""
        return finders[subcommand](arguments) if subcommand in finders else ()

    return find
