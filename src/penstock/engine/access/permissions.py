"""What one set of ACL rules allows: commands, keys and channels.

A user has a root selector and may have more, written in parentheses; a command is allowed when one selector alone
allows all of it. The commands, their categories and their keys come from the declarations in engine/declarations.py.
Only the channels, which five commands have, are declared here.

Rejected: keeping the rules as they were typed and replaying them on every check. The result is kept, and the rules that
ACL LIST shows are derived from it, as Redis 7.0 does: the best fitting categories first, then single commands.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from typing import NamedTuple

from penstock.engine.declarations import CATEGORIES, REGISTRY, Access, Argv, Command, Effect, Flag
from penstock.engine.globs import compile_glob
from penstock.protocol.errors import PenstockError


class RuleError(PenstockError):
    """A rule that cannot be applied; the text is Redis's."""


class Reason(enum.IntEnum):
    """Why something was refused; of several selectors' reasons the highest is reported."""

    COMMAND = 1
    KEY = 2
    AUTH = 3
    CHANNEL = 4


class Refusal(NamedTuple):
    """What was refused, and why."""

    reason: Reason
    position: int  # in argv, of the key or the channel; 0 if it is the command itself
    command: Command  # the one that was refused: the inner one of ONCE or LAZY, if it is that

    @property
    def rank(self) -> tuple[Reason, int]:
        """Of several selectors' refusals the one with the highest rank is reported."""
        return self.reason, self.position


_UNKNOWN = "Unknown command or category name in ACL"
_SYNTAX = "Syntax error"
_USELESS_KEY = (
    "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. "
    "Try 'resetkeys' to start with an empty list of patterns"
)
_USELESS_CHANNEL = (
    "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. "
    "Try 'resetchannels' to start with an empty list of channels"
)

_LITERAL_CHANNELS = {"PUBLISH": 2, "SPUBLISH": 2, "SUBSCRIBE": 1 << 30, "SSUBSCRIBE": 1 << 30}
_CHANNEL_PATTERNS = {"PSUBSCRIBE": 1 << 30}
"""Commands whose arguments from the first up to this position are channels. Listed by hand: no other command will have
channels for arguments, and keys alone have a place in declarations.
"""

_ACCESS_MARKS = {Access.READ: b"%R~", Access.WRITE: b"%W~", Access.UPDATE: b"~"}


class Selector:
    """One set of rules and what follows from it. Changed only by `apply`."""

    def __init__(self) -> None:
        self.all_commands = False
        self.future_commands = False  # started from +@all: commands that modules add later are allowed too
        self.allowed: set[Command] = set()
        self.first_arguments: dict[Command, list[bytes]] = {}  # +select|0: the command with this first argument only
        self.all_keys = False
        self.keys: dict[bytes, Access] = {}
        self.all_channels = False
        self.channels: dict[bytes, None] = {}

    def copy(self) -> Selector:
        twin = Selector()
        twin.__dict__.update(self.__dict__)
        twin.allowed = set(self.allowed)
        twin.first_arguments = {command: list(words) for command, words in self.first_arguments.items()}
        twin.keys = dict(self.keys)
        twin.channels = dict(self.channels)
        return twin

    @property
    def unrestricted(self) -> bool:
        return self.all_commands and self.all_keys and self.all_channels

    # -- rules ------------------------------------------------------------------------------------------------

    def apply(self, rule: bytes) -> None:
        """Apply one rule that concerns commands, keys or channels."""
        word = _WORDS.get(rule.lower(), rule.lower())
        if word == b"~*":
            self.all_keys = True
            self.keys.clear()
        elif word == b"resetkeys":
            self.all_keys = False
            self.keys.clear()
        elif word == b"&*":
            self.all_channels = True
            self.channels.clear()
        elif word == b"resetchannels":
            self.all_channels = False
            self.channels.clear()
        elif word in (b"+@all", b"-@all"):
            self._set_all(word == b"+@all")
        elif rule[:1] in (b"~", b"%"):
            self._add_key_pattern(rule)
        elif rule[:1] == b"&":
            self._add_channel_pattern(rule[1:])
        elif rule[:2] in (b"+@", b"-@"):
            self._set_category(word[2:].decode("utf-8", "replace"), rule[:1] == b"+")
        elif rule[:1] in (b"+", b"-"):
            self._set_command(word[1:], rule[:1] == b"+")
        else:
            raise RuleError(_SYNTAX)

    def _set_all(self, allow: bool) -> None:
        self.all_commands = self.future_commands = allow
        self.allowed = set(REGISTRY.walk()) if allow else set()
        self.first_arguments.clear()

    def _set(self, command: Command, allow: bool) -> None:
        family = [command, *command.subcommands.values()]
        if allow:
            self.allowed.update(family)
        else:
            if self.all_commands:
                self.allowed = set(REGISTRY.walk())  # modules may have added commands since
                self.all_commands = False
            self.allowed.difference_update(family)
        for member in family:
            self.first_arguments.pop(member, None)

    def _set_category(self, category: str, allow: bool) -> None:
        if category not in CATEGORIES:
            raise RuleError(_UNKNOWN)
        for command in REGISTRY.walk():
            if category in command.categories:
                self._set(command, allow)

    def _set_command(self, name: bytes, allow: bool) -> None:
        command = find_command(name)
        if command is not None:
            self._set(command, allow)
            return
        parent_name, bar, argument = name.rpartition(b"|")
        parent = find_command(parent_name) if bar else None
        if not allow or parent is None or parent.subcommands:
            raise RuleError(_UNKNOWN)
        if " " in parent.name:
            raise RuleError("Allowing first-arg of a subcommand is not supported")
        if not argument or has_space(argument):
            raise RuleError(_SYNTAX)
        words = self.first_arguments.setdefault(parent, [])
        if argument not in words:
            words.append(argument)

    def _add_key_pattern(self, rule: bytes) -> None:
        if self.all_keys:
            raise RuleError(_USELESS_KEY)
        mark, tilde, pattern = rule.partition(b"~")
        access = Access.UPDATE
        if mark:
            access = Access(0)
            for letter in mark[1:].upper():
                if letter not in b"RW":
                    raise RuleError(_SYNTAX)
                access |= Access.READ if letter == ord("R") else Access.WRITE
        if not tilde or not access or has_space(pattern):
            raise RuleError(_SYNTAX)
        self.keys[pattern] = self.keys.get(pattern, Access(0)) | access

    def _add_channel_pattern(self, pattern: bytes) -> None:
        if self.all_channels:
            raise RuleError(_USELESS_CHANNEL)
        if has_space(pattern):
            raise RuleError(_SYNTAX)
        self.channels[pattern] = None

    # -- checks -----------------------------------------------------------------------------------------------

    def refusal(self, command: Command, argv: Argv) -> Refusal | None:
        """Why these rules do not allow the call, with the command inside it if there is one; None when they do."""
        if not self.all_commands and command not in self.allowed and Flag.NO_AUTH not in command.flags:
            words = self.first_arguments.get(command)
            if words is None or len(argv) < 2 or argv[1].lower() not in words:
                return Refusal(Reason.COMMAND, 0, command)
        if not self.all_keys and command.keys:
            for position, access, spec in command.key_uses(argv):
                needed = access if spec.effect is not Effect.SIGHT else Access(0)  # to write it is enough, too
                if not self.allows_key(argv[position], needed):
                    return Refusal(Reason.KEY, position, command)
        if not self.all_channels:
            for position, is_pattern in channel_positions(command, argv):
                if not self.allows_channel(argv[position], is_pattern):
                    return Refusal(Reason.CHANNEL, position, command)
        if (inside := command.inside(argv)) is not None:
            called, at = inside
            inner = self.refusal(called, argv[at:])
            return inner and inner._replace(position=inner.position and inner.position + at)
        return None

    @property
    def reads_every_key(self) -> bool:
        """Whether any key may be read, also keys that depend on the data."""
        return self.all_keys or Access.READ in self.keys.get(b"*", Access(0))

    def allows_key(self, key: bytes, access: Access) -> bool:
        if self.all_keys:
            return True
        return any(access & ~granted == Access(0) and compile_glob(glob)(key) for glob, granted in self.keys.items())

    def allows_channel(self, channel: bytes, is_pattern: bool) -> bool:
        """A pattern that a user subscribes to must be allowed word for word: what it matches cannot be compared."""
        if self.all_channels:
            return True
        if is_pattern:
            return channel in self.channels
        return any(compile_glob(glob)(channel) for glob in self.channels)

    # -- the rules again --------------------------------------------------------------------------------------

    def describe_keys(self) -> bytes:
        if self.all_keys:
            return b"~*"
        return b" ".join(_ACCESS_MARKS[access] + pattern for pattern, access in self.keys.items())

    def describe_channels(self) -> bytes:
        if self.all_channels:
            return b"&*"
        return b" ".join(b"&" + pattern for pattern in self.channels)

    def describe_commands(self) -> bytes:
        """Rules that give the same commands: categories while they fit well, then the remaining differences."""
        if self.all_commands:
            return b"+@all"
        words = tuple((command, tuple(words)) for command, words in self.first_arguments.items())
        return _rules(frozenset(self.allowed), words, self.future_commands, REGISTRY.digest())

    def describe(self) -> bytes:
        """All rules, as ACL LIST shows them."""
        channels = b"&*" if self.all_channels else b"resetchannels " + self.describe_channels()
        parts = [self.describe_keys(), channels.rstrip(), self.describe_commands()]
        return b" ".join(part for part in parts if part)


_WORDS = {
    b"allkeys": b"~*", b"allchannels": b"&*", b"allcommands": b"+@all", b"nocommands": b"-@all",
}  # fmt: skip


def find_command(name: bytes) -> Command | None:
    """A command by the name that rules use: `get`, `config|get`."""
    container, bar, sub = name.upper().partition(b"|")
    command = REGISTRY.by_name.get(container)
    return command.subcommands.get(sub) if command is not None and bar else command


def channel_positions(command: Command, argv: Argv) -> Iterator[tuple[int, bool]]:
    """(position, whether it is a pattern) of every channel argument."""
    for table, is_pattern in ((_LITERAL_CHANNELS, False), (_CHANNEL_PATTERNS, True)):
        for position in range(1, min(table.get(command.name, 0), len(argv))):
            yield position, is_pattern


@functools.lru_cache(maxsize=1024)
def _rules(
    allowed: frozenset[Command],
    first_arguments: tuple[tuple[Command, tuple[bytes, ...]], ...],
    future: bool,
    digest: str,
) -> bytes:
    """See `describe_commands`; `digest` stands for all commands that there are.

    Kept, because most users of a server have one of a few sets of commands: ACL LIST of 3000 users took 3.9 s.
    """
    adding = not future
    told = Selector()
    told._set_all(not adding)
    rules = ["-@all" if adding else "+@all"]
    left = set(allowed)  # less what categories have added, or with what they have removed
    members: dict[str, set[Command]] = {category: set() for category in CATEGORIES}
    for command in REGISTRY.walk():
        for category in command.categories:
            members[category].add(command)
    while (best := _best_category(left, members, adding)) is not None:
        rules.append(("+@" if adding else "-@") + best)
        told._set_category(best, adding)
        for command in members[best]:
            family = [command, *command.subcommands.values()]
            if adding:
                left.difference_update(family)
            else:
                left.update(family)
    arguments = dict(first_arguments)
    for command in REGISTRY.walk():
        is_allowed = command in allowed
        if is_allowed != (command in told.allowed):
            rules.append(("+" if is_allowed else "-") + command.wire_name)
            told._set(command, is_allowed)
        if not is_allowed:
            words = arguments.get(command, ())
            rules += [f"+{command.wire_name}|{word.decode('utf-8', 'surrogateescape')}" for word in words]
    return " ".join(rules).encode("utf-8", "surrogateescape")


def _best_category(left: set[Command], members: dict[str, set[Command]], adding: bool) -> str | None:
    """The category with more commands that fit than that do not: the fewest misfits, then the most that fit."""
    best: tuple[int, int] | None = None
    chosen = None
    for category, commands in members.items():
        inside = len(commands & left)
        fits, misfits = (inside, len(commands) - inside) if adding else (len(commands) - inside, inside)
        if fits > misfits and (best is None or (misfits, -fits) < best):
            best, chosen = (misfits, -fits), category
    return chosen


def has_space(text: bytes) -> bool:
    """Whether a name or a pattern could not be read back from a file. These bytes and no others, as in Redis."""
    return any(byte in b" \t\n\r\v\f\0" for byte in text)
