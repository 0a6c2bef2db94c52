"""Which commands may be LAZY, and why the others may not: derived from the declarations.

A queued command runs later than it was logged, and no client may be able to tell. So its result must depend only on its
arguments and the keys they name: not on chance, not on the clock, not on keys that depend on the data. Every command
for which that is not certain is refused with its reason; docs/lazy-commands.md has the table.

Rejected: a list of names that may. A new command could be left out of it unnoticed.
"""

from __future__ import annotations

from functools import cache

from penstock.engine.declarations import Access, Argv, Command, Flag, Reach
from penstock.protocol.errors import ReplyError

NAME = "LAZY"

_NO_MATTER_WHAT = (
    (Flag.CONTROL, "belongs to the connection, not to the data"),
    (Flag.BLOCKING, "may wait"),
    (Flag.ADMIN, "is an operator's command"),
)
_THOUGH_IT_WRITES = (
    (Flag.RANDOM, "has a random outcome, which the log must know at once"),
    (Flag.TIMED, "depends on the clock"),
)


@cache  # it is asked for every LAZY command, and sets of flags are slow
def never(command: Command) -> str | None:
    """Why the command may not be LAZY whatever its arguments are, in words that follow "it"; None if it may."""
    if command.name == NAME:
        return "cannot be nested"
    if command.group == "scripting":
        return "touches keys that are not known before it runs"
    for flag, why in _NO_MATTER_WHAT:
        if flag in command.flags:
            return why
    if not command.writes:
        return "only reads" if command.keys or Flag.READONLY in command.flags else "changes no key"
    if not command.keys:
        return "names no key"
    for flag, why in _THOUGH_IT_WRITES:
        if flag in command.flags:
            return why
    for rule in (command.beyond, command.not_lazy):
        if rule is not None and rule.when is None:
            return rule.why
    return None


@cache
def _always_writes(command: Command) -> bool:
    """Whether it writes a key whatever its arguments are."""
    return any(Access.WRITE in spec.access and spec.find is None and spec.narrow is None for spec in command.keys)


def _writes_a_key(command: Command, argv: Argv) -> bool:
    try:
        return any(Access.WRITE in access for _, access in command.key_positions(argv))
    except ReplyError:
        return True  # its handler will refuse it


def sometimes(command: Command) -> list[str]:
    """With which arguments a command that may be LAZY may not."""
    return [rule.why for rule in (command.beyond, command.not_lazy) if rule is not None and rule.when is not None]


def refusal(command: Command, argv: Argv) -> str | None:
    """Why the command may not be LAZY with these arguments; None if it may."""
    why = never(command)
    if why is not None:
        return why
    if command.beyond is not None and command.reach(argv) is not Reach.KEYS:
        return command.beyond.why
    rule = command.not_lazy
    if rule is not None and rule.when is not None and rule.when(argv):
        return rule.why
    return None if _always_writes(command) or _writes_a_key(command, argv) else "only reads, with these arguments"
