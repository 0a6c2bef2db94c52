"""COMMAND: the list of commands, derived from their declarations, in the form of Redis 7.0.

Clients use it to find the keys of a command (GETKEYS, the key specs of INFO) and to help people (DOCS).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.engine.declarations import CATEGORIES as EVERY_CATEGORY
from penstock.engine.declarations import Argv, Command, Flag, KeySpec, Reply, command
from penstock.engine.globs import compile_glob
from penstock.engine.server_commands import ServerCommands
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, syntax_error
from penstock.protocol.resp import Members, Status

ANYTIME = Flag.LOADING | Flag.STALE
CATEGORIES = ("connection",)


def _statuses(words: list[str]) -> Members:
    return Members(Status(word.encode()) for word in words)


# -- COMMAND INFO ---------------------------------------------------------------------------------------------


def _range(specs: tuple[KeySpec, ...]) -> tuple[int, int, int]:
    """First key, last key and step, the older form of key specs; zeros if the positions are not fixed."""
    fixed = [spec for spec in specs if not spec.movable]
    if not fixed:
        return 0, 0, 0
    lasts = [spec.last for spec in fixed]
    return min(spec.first for spec in fixed), min(lasts) if min(lasts) < 0 else max(lasts), fixed[-1].step


def _key_spec(spec: KeySpec) -> dict[str, Any]:
    begin: dict[str, Any] = {"type": "index", "spec": {"index": spec.count_at or spec.first}}
    if spec.find is not None or spec.inner:
        begin = search = {"type": "unknown", "spec": {}}
    elif spec.count_at:
        found = {"keynumidx": 0, "firstkey": spec.first - spec.count_at, "keystep": spec.step}
        search = {"type": "keynum", "spec": found}
    else:
        last = spec.last if spec.last < 0 else spec.last - spec.first
        search = {"type": "range", "spec": {"lastkey": last, "keystep": spec.step, "limit": 0}}
    return {"flags": _statuses(spec.shown), "begin_search": begin, "find_keys": search}


def _information(described: Command) -> list[Any]:
    """One row of COMMAND."""
    words = described.flags.words
    if "movablekeys" not in words and any(spec.movable for spec in described.keys):
        words.append("movablekeys")
    return [
        described.wire_name,
        described.arity,
        _statuses(words),
        *_range(described.keys),
        _statuses([f"@{category}" for category in EVERY_CATEGORY if category in described.categories]),
        Members(),  # tips for cluster proxies: none
        Members(_key_spec(spec) for spec in described.keys),
        Members(_information(child) for child in described.subcommands.values()),
    ]


def _named(known: ServerCommands, name: bytes) -> Command | None:
    """The command of a name such as `get` or `config|get`."""
    container, _, sub = name.upper().partition(b"|")
    found = known.find([container])
    return found.subcommands.get(sub) if found is not None and sub else found


@command("COMMAND", arity=-1, flags=ANYTIME, group="server", cost="O(N) with N commands", categories=CATEGORIES)
def command_(session: Session, argv: Argv) -> Reply:
    """Describe every command: arity, flags, where its keys are, ACL categories, subcommands."""
    return [_information(each) for _, each in session.engine.commands.by_name()]


@command(
    "COMMAND INFO",
    arity=-2,
    flags=ANYTIME,
    group="server",
    syntax="[command-name [command-name ...]]",
    cost="O(N) with N commands",
    categories=CATEGORIES,
)
def command_info(session: Session, argv: Argv) -> Reply:
    """Describe the named commands as COMMAND does, or all of them; null for one that does not exist."""
    if len(argv) == 2:
        return command_(session, argv)
    known = session.engine.commands
    named = (_named(known, name) for name in argv[2:])
    return [None if found is None else _information(found) for found in named]


@command("COMMAND COUNT", arity=2, flags=ANYTIME, group="server", categories=CATEGORIES)
def command_count(session: Session, argv: Argv) -> Reply:
    """Answer how many commands there are, subcommands not counted."""
    return sum(1 for _ in session.engine.commands.by_name())


# -- COMMAND LIST ---------------------------------------------------------------------------------------------


def _filter(known: ServerCommands, word: bytes, argument: bytes) -> Callable[[Command], bool]:
    kind = word.upper()
    if kind == b"PATTERN":
        matches = compile_glob(argument, ignore_case=True)
        return lambda each: matches(each.wire_name.encode())
    if kind == b"ACLCAT":
        category = argument.decode("utf-8", "replace").lower()
        return lambda each: category in each.categories
    if kind == b"MODULE":
        name = argument.decode("utf-8", "replace")
        own = {command for module in known.modules if module.name == name for command in module.commands}
        return lambda each: each.name in own
    raise syntax_error()


@command(
    "COMMAND LIST",
    arity=-2,
    flags=ANYTIME,
    group="server",
    syntax="[FILTERBY MODULE module-name | ACLCAT category | PATTERN pattern]",
    cost="O(N) with N commands",
    categories=CATEGORIES,
)
def command_list(session: Session, argv: Argv) -> Reply:
    """Answer the names of all commands and subcommands, or of those in an ACL category or matching a pattern."""
    known = session.engine.commands
    if len(argv) == 2:
        return [each.wire_name for each in known.walk()]
    if len(argv) != 5 or argv[2].upper() != b"FILTERBY":
        raise syntax_error()
    wanted = _filter(known, argv[3], argv[4])
    return [each.wire_name for each in known.walk() if wanted(each)]


# -- COMMAND DOCS ---------------------------------------------------------------------------------------------


def _documentation(described: Command) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "summary": described.summary,
        "since": described.since,
        "group": described.group,
        "complexity": described.cost,
    }
    if described.syntax:
        fields["syntax"] = described.syntax
    if described.subcommands:
        fields["subcommands"] = {child.wire_name: _documentation(child) for child in described.subcommands.values()}
    return fields


@command(
    "COMMAND DOCS",
    arity=-2,
    flags=ANYTIME,
    group="server",
    syntax="[command-name [command-name ...]]",
    cost="O(N) with N commands",
    categories=CATEGORIES,
)
def command_docs(session: Session, argv: Argv) -> Reply:
    """Answer the documentation of the named commands, or of all; names that do not exist are left out."""
    known = session.engine.commands
    if len(argv) == 2:
        return {each.wire_name: _documentation(each) for _, each in known.by_name()}
    named = (_named(known, name) for name in argv[2:])
    return {each.wire_name: _documentation(each) for each in named if each is not None}


# -- COMMAND GETKEYS ------------------------------------------------------------------------------------------


def _keys_of(known: ServerCommands, argv: Argv) -> list[tuple[bytes, list[str]]]:
    """The keys of a whole command, and what it does to each."""
    called = known.find(argv)
    if called is None:
        raise ReplyError("Invalid command specified")
    if not called.keys:
        raise ReplyError("The command has no key arguments")
    if not called.low <= len(argv) <= called.high:
        raise ReplyError("Invalid number of arguments specified for command")
    return [(argv[position], spec.words(access)) for position, access, spec in called.key_uses(argv)]


@command(
    "COMMAND GETKEYS",
    arity=-4,
    flags=ANYTIME,
    group="server",
    syntax="command [arg [arg ...]]",
    cost="O(N) with N arguments",
    categories=CATEGORIES,
)
def command_getkeys(session: Session, argv: Argv) -> Reply:
    """Answer the keys in a whole command."""
    return [name for name, _ in _keys_of(session.engine.commands, argv[2:])]


@command(
    "COMMAND GETKEYSANDFLAGS",
    arity=-4,
    flags=ANYTIME,
    group="server",
    syntax="command [arg [arg ...]]",
    cost="O(N) with N arguments",
    categories=CATEGORIES,
)
def command_getkeysandflags(session: Session, argv: Argv) -> Reply:
    """Answer the keys in a whole command, and what it does to each."""
    return [[name, _statuses(words)] for name, words in _keys_of(session.engine.commands, argv[2:])]
