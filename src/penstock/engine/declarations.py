"""How a command is declared. Everything else about a command is derived from its declaration.

    @command(
        "LPUSH",
        arity=-3,
        flags=Flag.WRITE | Flag.DENYOOM | Flag.FAST,
        keys=key(1, Access.WRITE, Effect.INSERT),
        group="list",
        syntax="key element [element ...]",
        cost="O(1) an element",
    )
    def lpush(session: Session, argv: Argv) -> Reply:
        '''Put elements at the head of the list at key, creating it.'''

Derived from it: COMMAND INFO, DOCS and GETKEYS, the ACL categories, which keys a rule must allow and how, the slot,
whether it may run in a script or a transaction, whether maxmemory has room for it, whether it is logged, the fast path,
whether it may be LAZY and which queued commands run before it, and its page in docs/.

To add a command: declare and handle it in the module of its family under commands/, add its test, run `make docs`.
The arguments have the order of the signature of `command`. A subcommand is declared under its full name, "CONFIG GET";
the container is made from its subcommands.

arity counts the command's own name (two words for a subcommand); negative means "at least". If a command has further
rules for its words, as HSET needs pairs and BITOP the name of an operation, `check_words` is the function that checks
them, usually the one that parses them. The handler calls it, so such a command may be queued in MULTI and fails when it
runs, as in Redis. LAZY calls it before it queues the command, because later there is no client to answer. It must not
refuse what the handler accepts, with whatever values.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.protocol.command_digest import command_digest
from penstock.protocol.errors import ReplyError, shown, wrong_arity
from penstock.protocol.resp import RawPieces, Status

if TYPE_CHECKING:
    from penstock.engine.keyspace.databases import Database
    from penstock.engine.session import Session
    from penstock.engine.stream_history import Foreseen

Argv = list[bytes]
Reply = Any  # what protocol/resp.py can encode; its docstring has the table
Handler = Callable[["Session", Argv], Reply]
Growth = Callable[["Session", Argv], int]
"""How many bytes a command may take beyond its arguments, with the current values of its keys. O(1) a key: it is called
before each call while there is a maxmemory. May raise a ReplyError for arguments that the handler refuses.
"""
Foresight = Callable[["Session", "Database", Argv], "Foreseen"]
"""Which messages of streams a command will probably read if it runs now, in this database. EXEC and scripts cannot wait
in their middle, and fetch those that lie in files before. May raise a ReplyError for arguments that the handler
refuses.
"""
CheckWords = Callable[["Session", Argv], object]
"""Raises the ReplyError with which the handler refuses these words whatever is at the keys. What it answers is not
used.
"""
Together = Callable[["Session", list[Argv]], int | RawPieces]
"""Runs several calls of a command that came in a row, each with the fewest arguments it may have and all with the same
key. It answers the first one's reply, an integer, and the others' count up from it; or the encoded replies of all. An
error is copied for each. No last argument is longer than LONG_ARGUMENT: there is no work for a thread.
"""
LONG_ARGUMENT: Final = 8192
"""Bytes of an argument from which reading it may take so long that a thread does it."""


class Flag(enum.Flag):
    """What a command does, in Redis's own words where it has one."""

    WRITE = enum.auto()  # may change data; what it changes is logged
    READONLY = enum.auto()  # reads data, never changes any
    DENYOOM = enum.auto()  # may grow memory: refused when maxmemory is reached
    ADMIN = enum.auto()  # an operator's command
    PUBSUB = enum.auto()
    NOSCRIPT = enum.auto()  # not from a script
    BLOCKING = enum.auto()  # may wait
    LOADING = enum.auto()  # allowed while the data set is being loaded
    STALE = enum.auto()  # allowed on a replica that lost its leader
    FAST = enum.auto()  # O(1) or O(log N), never slow enough for the slow log
    NO_AUTH = enum.auto()  # allowed before logging in
    NO_MULTI = enum.auto()  # not inside MULTI
    MOVABLEKEYS = enum.auto()  # where the keys are depends on the arguments
    SKIP_SLOWLOG = enum.auto()
    SKIP_MONITOR = enum.auto()  # reports itself to MONITOR, before the commands it runs
    ALLOW_BUSY = enum.auto()  # allowed while a script is too slow
    CONTROL = enum.auto()  # MULTI, EXEC, DISCARD, WATCH...: run at once inside a transaction, never queued
    RANDOM = enum.auto()  # the outcome is random; logged by effect, may not be LAZY
    TIMED = enum.auto()  # the outcome depends on the clock; may not be LAZY
    MAY_REPLICATE = enum.auto()  # changes no data but reaches other clients: not from a read-only script
    DIRECT = enum.auto()  # runs in the server's inner loop, like FAST ones, although Redis does not call it fast
    BRIEF = enum.auto()  # likewise, with the fewest words it may have: then it neither waits nor writes
    RENAMES = enum.auto()  # gives a value another name, and its expiry time goes with it
    PEEKS = enum.auto()  # looks at its keys without using them: neither a hit nor a miss (INFO stats)
    SUBSCRIBED = enum.auto()  # allowed to a RESP2 client that has subscribed
    NO_DATA = enum.auto()  # its reply shows no data, and waits for neither log nor replicas; a replica may run it

    @property
    def words(self) -> list[str]:
        """Names as COMMAND INFO prints them."""
        return [flag.name.lower() for flag in self if flag.name and flag not in _INTERNAL]


_INTERNAL = (
    Flag.SKIP_MONITOR
    | Flag.CONTROL
    | Flag.RANDOM
    | Flag.TIMED
    | Flag.MAY_REPLICATE
    | Flag.DIRECT
    | Flag.BRIEF
    | Flag.RENAMES
    | Flag.PEEKS
    | Flag.SUBSCRIBED
    | Flag.NO_DATA
)


class Access(enum.Flag):
    """What a command does to a key, for ACL patterns and locks."""

    READ = enum.auto()  # answers or copies the value
    WRITE = enum.auto()  # changes the value without answering it
    UPDATE = READ | WRITE


class Effect(enum.Enum):
    """What a command does to a key, if its access does not say it; in Redis's words."""

    SIGHT = "RO", ""  # answers whether it exists, its type or its length, but not its value
    UPDATE = "RW", "update"
    OVERWRITE = "OW", "update"  # whatever value it had
    CREATE = "OW", "insert"  # if it does not exist
    INSERT = "RW", "insert"  # adds to the value
    DELETE = "RW", "delete"  # removes from the value
    REMOVE = "RM", "delete"  # removes the key itself


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Which arguments are keys: first, first+step, ... up to last (negative counts from the end).

    With `count_at`, argument number `count_at` says how many keys follow from `first` on.
    With `find`, a function of argv gives the positions; then the rest only serves COMMAND INFO.
    With `inner`, the arguments from there on are a command of their own, and its keys are meant.
    """

    access: Access
    first: int = 1
    last: int = 1
    step: int = 1
    count_at: int = 0
    find: Callable[[Argv], Iterable[int]] | None = None
    inner: int = 0
    narrow: Callable[[Sequence[bytes]], Access] | None = None  # what it does with these arguments: less than `access`
    still_writes: bool = (
        False  # a command that narrows it counts as a write all the same, as in Redis: BITFIELD ... GET
    )
    effect: Effect | None = None

    def words(self, access: Access) -> list[str]:
        """How Redis describes that a key is used with this access."""
        effect = self.effect
        if effect is None and access is Access.READ:
            return ["RO", "access"]
        if effect is None or (effect is Effect.OVERWRITE and Access.READ in access):
            effect = Effect.UPDATE
        mode, change = effect.value
        read = ["access"] if Access.READ in access and effect is not Effect.SIGHT else []
        return [mode, *read, *([change] if change else [])]

    @property
    def shown(self) -> list[str]:
        """The flags of the key in COMMAND INFO."""
        return self.words(self.access) + (["variable_flags"] if self.narrow is not None else [])

    @property
    def movable(self) -> bool:
        """Whether the positions of the keys depend on the arguments."""
        return self.find is not None or bool(self.count_at or self.inner)

    def positions(self, argv: Sequence[bytes]) -> Iterable[int]:
        if self.find is not None:
            return self.find(list(argv))
        if self.count_at:
            if self.count_at >= len(argv):
                raise ReplyError("Invalid arguments specified for command")
            try:
                count = int(argv[self.count_at])
            except ValueError:
                raise ReplyError("Invalid arguments specified for command") from None
            if count < 0 or self.first + count > len(argv):
                raise ReplyError("Invalid arguments specified for command")
            return range(self.first, self.first + count)
        last = self.last if self.last >= 0 else len(argv) + self.last
        return range(self.first, min(last, len(argv) - 1) + 1, self.step)


def key(
    first: int,
    access: Access,
    effect: Effect | None = None,
    narrow: Callable[[Sequence[bytes]], Access] | None = None,
    still_writes: bool = False,
) -> tuple[KeySpec, ...]:
    """One key at a fixed place; `narrow` where the access depends on the arguments (SET reads only with GET)."""
    return (KeySpec(access, first, first, narrow=narrow, still_writes=still_writes, effect=effect),)


def keys(first: int, last: int, access: Access, effect: Effect | None = None, step: int = 1) -> tuple[KeySpec, ...]:
    """A run of keys; add two of these for a command that writes one key and reads others."""
    return (KeySpec(access, first, last, step, effect=effect),)


def counted_keys(count_at: int, access: Access, effect: Effect | None = None) -> tuple[KeySpec, ...]:
    """`numkeys key [key ...]`."""
    return (KeySpec(access, count_at + 1, 0, 1, count_at, effect=effect),)


def found_keys(
    find: Callable[[Argv], Iterable[int]], access: Access, effect: Effect | None = None
) -> tuple[KeySpec, ...]:
    """Keys whose positions depend on the arguments."""
    return (KeySpec(access, 1, 1, 1, 0, find, effect=effect),)


def inner_keys(at: int) -> tuple[KeySpec, ...]:
    """The keys of the command that argument `at` names: `LAZY command ...`."""
    return (KeySpec(Access.UPDATE, inner=at),)


class Reach(enum.Enum):
    """How far a command reads or writes."""

    KEYS = enum.auto()  # no further than the keys its arguments name
    DATABASE = enum.auto()  # any key of its database: KEYS, SORT ... BY
    SERVER = enum.auto()  # keys of other databases too: SWAPDB, MOVE


@dataclass(frozen=True, slots=True)
class Beyond:
    """Says that a command reaches beyond the keys it names, always or with some arguments."""

    reach: Reach
    why: str  # in words that follow "it": "looks at every key"
    when: Callable[[Argv], bool] | None = None
    places: Callable[[Argv], list[tuple[int, bytes]]] | None = None
    """Which of its keys are in other databases: the place of each, and the number of the database as it was written.
    One that is read, too, is in the client's database as well."""


@dataclass(frozen=True, slots=True)
class NotLazy:
    """Says that a command may not be LAZY where its flags do not say so, always or with some arguments."""

    why: str  # in words that follow "it"
    when: Callable[[Argv], bool] | None = None


def wire_name(name: str) -> str:
    """A command's name as Redis prints it: `config|get` for CONFIG GET."""
    return name.lower().replace(" ", "|")


@dataclass(slots=True, eq=False)
class Command:
    """A declared command, or a container of subcommands (then `handler` is never called)."""

    name: str  # upper case; "CONFIG GET" for a subcommand
    handler: Handler
    arity: int
    flags: Flag
    keys: tuple[KeySpec, ...]
    group: str
    since: str
    syntax: str
    cost: str
    summary: str
    categories: frozenset[str]
    together: Together | None = None
    beyond: Beyond | None = None
    not_lazy: NotLazy | None = None
    copies_from: int = 0  # the position of a key whose value it copies elsewhere, if the user's permissions allow it
    grows: Growth | None = None  # None: it keeps no more than its arguments
    foresees: Foresight | None = None  # None: it reads no messages of streams, or says so too late for EXEC
    check_words: CheckWords | None = None  # raises if words are wrong although `arity` allows them
    subcommands: dict[bytes, Command] = field(default_factory=dict)
    # Derived once, because dispatch asks for them on every call.
    low: int = 0
    high: int = 0
    of_module: bool = False  # it is not built in; kept by module_loader.py
    writes: bool = False  # it changes data, with some arguments at least: see `may_write`
    shows_data: bool = True  # its reply does, or may
    conditional: bool = False  # what it does to its keys depends on the arguments
    reads: tuple[KeySpec, ...] = ()  # keys that count as hits and misses: it does not change them, or not always
    reads_one: int = 0  # the position of the key, if there is only one, at a fixed position

    def __post_init__(self) -> None:
        self.low = abs(self.arity)
        self.high = self.arity if self.arity > 0 else 1 << 62
        self.writes = Flag.WRITE in self.flags
        self.shows_data = Flag.NO_DATA not in self.flags
        self.conditional = self.writes and any(
            (spec.narrow is not None and not spec.still_writes) or spec.inner for spec in self.keys
        )
        if Flag.PEEKS not in self.flags:
            quick = bool(self.flags & (Flag.FAST | Flag.DIRECT))
            self.reads = tuple(
                spec
                for spec in self.keys
                if spec.access is Access.READ or (spec.narrow and not spec.still_writes and not quick)
            )
        if len(self.reads) == 1 and not self.reads[0].movable and self.reads[0].first == self.reads[0].last:
            self.reads_one = self.reads[0].first

    @property
    def wire_name(self) -> str:
        return wire_name(self.name)

    def check_arity(self, argv: Sequence[bytes]) -> None:
        if not self.low <= len(argv) <= self.high:
            raise wrong_arity(self.wire_name)

    def inside(self, argv: Sequence[bytes]) -> tuple[Command, int] | None:
        """The command that this one runs, and where it begins; None unless this is one like ONCE.

        They cannot be nested.
        """
        at = self.keys[0].inner if self.keys else 0
        called = REGISTRY.find(argv[at:]) if at else None
        return None if called is None or any(spec.inner for spec in called.keys) else (called, at)

    def key_positions(self, argv: Sequence[bytes]) -> Iterator[tuple[int, Access]]:
        """(position, access) of every key argument."""
        return ((position, access) for position, access, _ in self.key_uses(argv))

    def key_uses(self, argv: Sequence[bytes]) -> Iterator[tuple[int, Access, KeySpec]]:
        """The same, with where it is declared."""
        for spec in self.keys:
            if spec.inner:
                if (inside := self.inside(argv)) is not None:
                    called, at = inside
                    for position, access, declared in called.key_uses(argv[at:]):
                        yield position + at, access, declared
                continue
            access = spec.access if spec.narrow is None else spec.narrow(argv)
            for position in spec.positions(argv):
                yield position, access, spec

    def may_write(self, argv: Sequence[bytes]) -> bool:
        """Whether these arguments let it change data: TREAD writes only with GROUP.

        All code that holds writes back asks here. A command that does not narrow its access is what its flags say, SORT
        without STORE included: Redis counts it as a write too.
        """
        if not self.conditional:
            return self.writes
        try:
            return any(Access.WRITE in access for _, access in self.key_positions(argv))
        except ReplyError:
            return True  # its handler will refuse it

    def reach(self, argv: Argv) -> Reach:
        """How far it sees with these arguments."""
        if (inside := self.inside(argv)) is not None:
            called, at = inside
            return called.reach(argv[at:])
        beyond = self.beyond
        if beyond is None or (beyond.when is not None and not beyond.when(argv)):
            return Reach.KEYS
        return beyond.reach

    def key_names(self, argv: Sequence[bytes]) -> list[bytes]:
        return [argv[position] for position, _ in self.key_positions(argv)]


class Module(NamedTuple):
    """Commands that are not built in; see module_loader.py."""

    name: str
    version: int
    path: str
    commands: tuple[str, ...]


class Registry:
    """All commands by name. Owned by the module below; read-only once the server runs."""

    def __init__(self) -> None:
        self.by_name: dict[bytes, Command] = {}  # top level, upper case
        self.modules: dict[str, Module] = {}  # by the name they are loaded by
        self._digest: str | None = None  # None: not computed since a command was added or removed

    def saved(self) -> Saved:
        """What is declared now, for `restore`."""
        tables = {name: (command, dict(command.subcommands)) for name, command in self.by_name.items()}
        return tables, dict(self.modules)

    def restore(self, saved: Saved) -> None:
        """Remove everything that was declared since."""
        self._digest = None
        tables, self.modules = saved[0], dict(saved[1])
        self.by_name = {name: command for name, (command, _) in tables.items()}
        for command, subcommands in tables.values():
            command.subcommands = dict(subcommands)

    def add(self, command: Command) -> None:
        self._digest = None
        container, _, sub = command.name.partition(" ")
        table = self.by_name
        if sub:
            parent = table.get(container.encode())
            if parent is None:
                parent = table[container.encode()] = _container(container, command)
            table = parent.subcommands
            if b"HELP" not in table and sub != "HELP":
                table[b"HELP"] = _help(container, parent, command.categories & _DATA_CATEGORIES)
        name = (sub or container).encode()
        if name in table and name != b"HELP":
            raise ValueError(f"{command.name} is declared twice")
        table[name] = command

    def find(self, argv: Sequence[bytes]) -> Command | None:
        """The command argv calls, its subcommand included; None when there is no such command."""
        command = self.by_name.get(argv[0]) or self.by_name.get(argv[0].upper())
        if command is not None and command.subcommands and len(argv) > 1:
            return command.subcommands.get(argv[1].upper())
        return command

    def resolve(self, argv: Sequence[bytes]) -> Command:
        """Like `find`, with Redis's error for what is unknown; the arity is checked too."""
        command = self.by_name.get(argv[0]) or self.by_name.get(argv[0].upper())
        if command is None:
            raise unknown_command(argv)
        if command.subcommands and (len(argv) > 1 or command.arity != -1):  # COMMAND is also one by itself
            command.check_arity(argv)
            sub = command.subcommands.get(argv[1].upper())
            if sub is None:
                raise ReplyError(f"unknown subcommand '{shown(argv[1][:128])}'. Try {command.name} HELP.")
            command = sub
        command.check_arity(argv)
        return command

    def digest(self) -> str:
        """See protocol/command_digest.py."""
        if self._digest is None:
            every = list(self.walk())
            self._digest = command_digest([each.name for each in every], {each.name for each in every if each.writes})
        return self._digest

    def walk(self) -> Iterator[Command]:
        """Every command, containers included, each before its subcommands."""
        for command in self.by_name.values():
            yield command
            yield from command.subcommands.values()


def unknown_command(argv: Sequence[bytes]) -> ReplyError:
    """Redis's text: the name and the first arguments, cut so that no client can flood a log."""
    arguments = b""
    for arg in argv[1:]:
        if len(arguments) >= 128:
            break
        arguments += b"'%b' " % arg[: 128 - len(arguments)].partition(b"\0")[0]
    return ReplyError(f"unknown command '{shown(argv[0][:128])}', with args beginning with: {shown(arguments)}")


Saved = tuple[dict[bytes, tuple[Command, dict[bytes, Command]]], dict[str, Module]]

REGISTRY = Registry()


def command(
    name: str,
    *,
    arity: int,
    flags: Flag,
    keys: tuple[KeySpec, ...] = (),
    group: str,
    syntax: str = "",
    cost: str = "O(1)",
    since: str = "0.1",
    categories: Iterable[str] = (),
    together: Together | None = None,
    beyond: Beyond | None = None,
    not_lazy: NotLazy | None = None,
    copies_from: int = 0,
    grows: Growth | None = None,
    foresees: Foresight | None = None,
    check_words: CheckWords | None = None,
) -> Callable[[Handler], Handler]:
    """Declare a command; see the top of this file."""

    def declare(handler: Handler) -> Handler:
        summary = " ".join((handler.__doc__ or "").split("\n\n")[0].split())
        if not summary:
            raise ValueError(f"{name} needs a docstring: it is the command's documentation")
        REGISTRY.add(
            Command(
                name, handler, arity, flags, keys, group, since, syntax, cost, summary,
                _categories(flags, keys, group, frozenset(categories)), together, beyond, not_lazy,
                copies_from, grows, foresees, check_words,
            )
        )  # fmt: skip
        return handler

    return declare


def _categories(flags: Flag, keys: tuple[KeySpec, ...], group: str, extra: frozenset[str]) -> frozenset[str]:
    """ACL categories that follow from the flags, as Redis derives them, plus those a declaration names."""
    names = set(extra)
    if group in _DATA_GROUPS:
        names.add(_DATA_GROUPS[group])
    if Flag.WRITE in flags:
        names.add("write")
    if Flag.READONLY in flags and group not in ("scripting",) and keys:
        names.add("read")
    if Flag.ADMIN in flags:
        names |= {"admin", "dangerous"}
    if Flag.PUBSUB in flags:
        names.add("pubsub")
    names.add("fast" if Flag.FAST in flags else "slow")
    if Flag.BLOCKING in flags:
        names.add("blocking")
    return frozenset(names)


_DATA_GROUPS = {
    "generic": "keyspace", "string": "string", "bitmap": "bitmap", "hash": "hash", "list": "list", "set": "set",
    "sorted-set": "sortedset", "connection": "connection", "transactions": "transaction", "scripting": "scripting",
    "stream": "stream", "xstream": "stream",
}  # fmt: skip

_DATA_CATEGORIES = frozenset(_DATA_GROUPS.values())

CATEGORIES = (
    "keyspace", "read", "write", "set", "sortedset", "list", "hash", "string", "bitmap", "hyperloglog", "geo",
    "stream", "pubsub", "admin", "fast", "slow", "blocking", "dangerous", "connection", "transaction", "scripting",
)  # fmt: skip
"""Every category, in the order ACL CAT lists them."""


def _container(name: str, first: Command) -> Command:
    def never(session: Session, argv: Argv) -> Reply:
        raise AssertionError("a container was called")

    return Command(
        name, never, -2, Flag(0), (), first.group, first.since, "", "Depends on subcommand.",
        f"A container for {name} commands.", frozenset({"slow"}),
    )  # fmt: skip


def _help(container: str, parent: Command, categories: frozenset[str]) -> Command:
    """`CONTAINER HELP`, written from the declarations."""

    def show(session: Session, argv: Argv) -> Reply:
        lines = [f"{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
        for sub, child in sorted(parent.subcommands.items()):
            lines.append(f"{sub.decode()} {child.syntax}".rstrip())
            lines.append(f"    {child.summary}")
        return [Status(line.encode()) for line in lines]

    show.__doc__ = f"Show what {container}'s subcommands do."
    return Command(
        f"{container} HELP", show, 2, Flag.LOADING | Flag.STALE, (), parent.group, parent.since, "", "O(1)",
        show.__doc__, categories | {"slow"},
    )  # fmt: skip
