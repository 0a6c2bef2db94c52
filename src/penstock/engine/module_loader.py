"""Modules: commands that a user writes in Python, loaded when a server starts.

A module is named as Python imports it, or by the path of a .py file. Importing it declares its commands, exactly as the
built-in families do, so everything that follows from a declaration holds for them: COMMAND DOCS, ACL rules, locks, the
log. What it needs for that is in penstock/modules.py.

Invariants: a module is in the registry with all its commands, or, if anything about it fails, with none. What its
commands return can be sent to a client (`checked_reply`). What they leave at the keys that they declare, and at those
whose change they report, can be written to disk and read back (`checked_after`). Larger collections are not looked
through: a snapshot leaves wrong elements out (blocks.py).

Rejected: MODULE LOAD at run time. A log that was written with a module needs it to be replayed, so it belongs into
the configuration, and commands that come and go would make every table derived from the registry a thing to watch.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.engine.declarations import REGISTRY, Access, Argv, Command, Flag, Handler, Module, Reply
from penstock.protocol.errors import PenstockError, ReplyError
from penstock.protocol.resp import require_form
from penstock.types import codec
from penstock.types.registry import DECLARED, withdraw

if TYPE_CHECKING:
    from penstock.engine.keyspace.databases import Database
    from penstock.engine.session import Session

logger = logging.getLogger("penstock.modules")


FEW = 1000
"""Elements of a collection that are looked at after each command."""


@contextmanager
def checked_after(session: Session, command: Command, argv: Argv) -> Iterator[None]:
    """With this around it, a module's command leaves nothing at its keys that a snapshot could not hold, and nothing
    for the log that a start could not run.

    A collection of no elements is removed, as built-in commands do it. What is of no type that the server knows, and
    elements that are not bytes, are removed, too, and are an error. So are words for the log that are no command that
    writes: the command itself is logged then.
    """
    database = session.db
    if not command.writes:
        yield
        return
    changed = database.observed.note_changes()
    try:
        yield
    finally:
        keys = dict.fromkeys(changed.names)  # also those that it does not declare
        with suppress(ReplyError):  # the handler has refused the arguments
            keys |= {argv[at]: None for at, access in command.key_positions(argv) if Access.WRITE in access}
        problems = [problem for key in keys if (problem := _correct(database, key))]
        if problems:
            raise TypeError(f"{command.name} put {problems[0]}; it was removed")
        for words in session.effects or ():
            if not _can_be_logged(session, words):
                session.effects = None
                raise TypeError(f"{command.name} logs {str(words)[:200]}, which is no command that writes, in bytes")


def _can_be_logged(session: Session, words: Argv) -> bool:
    if not words or not all(isinstance(word, bytes | bytearray | memoryview) for word in words):
        return False
    found = session.engine.commands.find([bytes(word) for word in words[:2]])
    return found is not None and Flag.READONLY not in found.flags


def checked_reply(command: Command, reply: Reply) -> Reply:
    """A module's reply, if a client can be sent it. Here the command is known; where a reply is encoded, many replies
    may be one, and a part of it may have left.
    """
    if type(reply) is not bytes:
        try:
            require_form(reply)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"{command.name} returned {error}") from None
    return reply


def _correct(database: Database, key: bytes) -> str:
    """Remove what is wrong about a key, and say what it was; "" if an error would say too much."""
    value = database.data.get(key)
    if value is None:
        return ""
    if type(key) is not bytes:
        database.delete(key)
        return f"a value at a key that is a {type(key).__name__}"
    if codec.is_empty(value):
        database.delete(key)
    elif not codec.is_value(value):
        database.delete(key)
        return f"a {type(value).__name__} at a key"
    elif not isinstance(value, Collection) or len(value) <= FEW:
        part = codec.sound_part(value)
        if part is not value:
            database.replace_or_delete(key, part)
            return f"an element that is not bytes into a {codec.type_name(value)}"
    return ""


class ModuleError(PenstockError):
    """A module that cannot be loaded; says which, and why."""


def load(where: str) -> Module:
    """Import a module, which declares its commands. One that was loaded before is found, not loaded again."""
    if where in REGISTRY.modules:
        return REGISTRY.modules[where]
    before = REGISTRY.saved()
    known, types = set(sys.modules), set(DECLARED)
    try:
        imported = _import_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        module = _describe(where, imported)
    except Exception as error:
        REGISTRY.restore(before)
        for kind in set(DECLARED) - types:
            withdraw(kind)
        for name in set(sys.modules) - known:  # or a second try would find it imported and declare nothing
            del sys.modules[name]
        logger.debug("the module %s cannot be loaded", where, exc_info=error)
        raise ModuleError(f"cannot load the module '{where}': {_reason(where, error)}") from error
    REGISTRY.modules[where] = module
    return module


def _import_file(path: Path) -> ModuleType:
    name = f"penstock_module_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"there is no file {path.resolve()}")
    imported = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(imported)
    return imported


def _checked(command: Command) -> Handler:
    """The handler of a module's command, and a look at what it left. sys.exit() in it is an error, and no end."""
    handler = command.handler

    @wraps(handler)
    def run(session: Session, argv: Argv) -> Reply:
        with checked_after(session, command, argv):
            try:
                return checked_reply(command, handler(session, argv))
            except SystemExit as end:
                raise RuntimeError(repr(end)) from None

    return run


def _describe(where: str, imported: ModuleType) -> Module:
    inside = imported.__name__
    commands = [
        command
        for command in REGISTRY.walk()
        if not command.subcommands and f"{command.handler.__module__}.".startswith(f"{inside}.")
    ]
    if not commands:
        raise ValueError("it declares no command; see docs/modules.md")
    for command in commands:
        if not command.of_module:
            command.of_module = True
            command.handler = _checked(command)
    for container in REGISTRY.by_name.values():
        members = container.subcommands
        if members and all(each.of_module for name, each in members.items() if name != b"HELP"):
            container.of_module = members[b"HELP"].of_module = True
    name = Path(where).stem if where.endswith(".py") else where
    names = tuple(command.name for command in commands)
    return Module(name, int(getattr(imported, "MODULE_VERSION", 1)), str(imported.__file__), names)


def _reason(where: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and where.split(".")[0] == error.name:
        return "Python finds no such module; give the path of a .py file, or set PYTHONPATH"
    return f"{type(error).__name__}: {error}"
