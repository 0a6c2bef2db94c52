"""Users: passwords, login, the log of refusals, and the file of users.

Passwords are held as SHA-256, as in Redis (its files and hashes can be used here), and compared in constant time. A
change is made on a copy that replaces the user when every rule was accepted, so a bad rule changes nothing. The
sessions of a changed user see it with their next command, those of a deleted one are closed.

Owned by the loop thread.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.engine.access.permissions import Reason, Refusal, RuleError, Selector, has_space
from penstock.engine.config import ConfigError
from penstock.engine.declarations import Access, Argv, Command
from penstock.protocol.errors import NoPerm, ReplyError, WrongPass
from penstock.types.stream.changes import Change
from penstock.types.stream.stream import Stream

if TYPE_CHECKING:
    from penstock.engine.dispatch import Engine
    from penstock.engine.keyspace.databases import Value
    from penstock.engine.session import Session

_HEXADECIMAL = frozenset(b"0123456789abcdef")
_BAD_HASH = "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
_NO_SUCH_PASSWORD = "The password you are trying to remove from the user does not exist"
LOG_GROUPING = 60_000
"""Milliseconds within which the same refusal is counted instead of logged again."""


class User:
    """A user and its rules. Changed only by `apply`; AccessControl does so on a copy."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.prefix = (
            b"" if name == "default" else name.encode("utf-8", "surrogateescape") + b"\0"
        )  # of its ids in ONCE
        self.enabled = False
        self.no_password = False
        self.sanitize = ""  # "sanitize-payload" or "skip-sanitize-payload" once said; kept for ACL LIST only
        self.passwords: dict[bytes, None] = {}  # SHA-256 in hexadecimal, in the order they were added
        self.root = Selector()
        self.selectors: list[Selector] = []  # besides the root
        self.unrestricted = False  # all commands, keys and channels: dispatch skips the gate

    def copy(self) -> User:
        twin = User(self.name)
        twin.become(self)
        return twin

    def become(self, other: User) -> None:
        """Take over everything but the name: sessions keep their reference to this object."""
        self.enabled, self.no_password, self.sanitize = other.enabled, other.no_password, other.sanitize
        self.passwords = dict(other.passwords)
        self.root = other.root.copy()
        self.selectors = [selector.copy() for selector in other.selectors]
        self.unrestricted = self.root.unrestricted

    @property
    def needs_no_password(self) -> bool:
        return self.enabled and self.no_password

    def accepts(self, password: bytes) -> bool:
        """Whether this logs the user in. Takes the same time whatever is wrong with the password."""
        given = _digest(password)
        matches = [hmac.compare_digest(given, known) for known in self.passwords]
        return self.enabled and (self.no_password or any(matches))

    def refusal(self, command: Command, argv: Argv) -> Refusal | None:
        """Why no selector allows the call; None when one does."""
        refusals: list[Refusal] = []
        for selector in (self.root, *self.selectors):
            refusal = selector.refusal(command, argv)
            if refusal is None:
                return None
            refusals.append(refusal)
        return max(refusals, key=lambda refusal: refusal.rank)

    def may_read_every_key(self, command: Command, argv: Argv) -> bool:
        """Whether one selector allows the call and the reading of any key, as SORT needs for a pattern."""
        return self.unrestricted or any(
            selector.reads_every_key and selector.refusal(command, argv) is None
            for selector in (self.root, *self.selectors)
        )

    def may_write(self, command: Command, argv: Argv, keys: Iterable[bytes]) -> bool:
        """Whether one selector allows the call and the writing of further keys that the call does not name."""
        return self.unrestricted or any(
            all(selector.allows_key(key, Access.WRITE) for key in keys) and selector.refusal(command, argv) is None
            for selector in (self.root, *self.selectors)
        )

    # -- rules ------------------------------------------------------------------------------------------------

    def apply(self, rule: bytes, new_channels: bytes = b"resetchannels") -> None:
        """Apply one rule of ACL SETUSER. `new_channels` is what `reset` does to channels."""
        word, mark = rule.lower(), rule[:1]
        if not rule:
            return  # as in Redis
        if word in (b"on", b"off"):
            self.enabled = word == b"on"
        elif word == b"nopass":
            self.no_password = True
            self.passwords.clear()
        elif word == b"resetpass":
            self.no_password = False
            self.passwords.clear()
        elif word in (b"sanitize-payload", b"skip-sanitize-payload"):
            self.sanitize = word.decode()
        elif word == b"clearselectors":
            self.selectors.clear()
        elif word == b"reset":
            for part in (b"resetpass", b"resetkeys", new_channels, b"off", b"sanitize-payload", b"clearselectors"):
                self.apply(part)
            self.apply(b"-@all")
        elif mark in (b">", b"#"):
            self.passwords[_digest(rule[1:]) if mark == b">" else _checked_hash(rule[1:])] = None
            self.no_password = False
        elif mark in (b"<", b"!"):
            known = _digest(rule[1:]) if mark == b"<" else _checked_hash(rule[1:])
            if known not in self.passwords:
                raise RuleError(_NO_SUCH_PASSWORD)
            del self.passwords[known]
        elif mark == b"(" and rule.endswith(b")"):
            selector = Selector()
            selector.apply(new_channels)
            for part in rule[1:-1].split():
                if part.endswith(b")"):  # which would end the selector where it is read from a file
                    raise RuleError("A rule of a selector cannot end with ')'")
                selector.apply(part)
            self.selectors.append(selector)
        else:
            self.root.apply(rule)
            self.unrestricted = self.root.unrestricted

    def flags(self) -> list[str]:
        words = ["on" if self.enabled else "off", "nopass" if self.no_password else "", self.sanitize]
        return [word for word in words if word]

    def describe(self) -> bytes:
        """The user as a line of ACL LIST and of the file."""
        parts = [b"user", self.name.encode("utf-8", "surrogateescape")]
        parts += [flag.encode() for flag in self.flags()]
        parts += [b"#" + known for known in self.passwords]
        parts.append(self.root.describe())
        parts += [b"(%b)" % selector.describe() for selector in self.selectors]
        return b" ".join(parts)


@dataclass(slots=True)
class LogEntry:
    """A row of ACL LOG."""

    reason: Reason
    context: str
    object: bytes
    user: str
    time: int  # milliseconds, of the latest
    client: str  # as CLIENT LIST shows it
    count: int = 1


class AccessControl:
    """All users of a server. See the top of this file."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.default = User("default")
        for rule in (b"on", b"nopass", b"~*", b"&*", b"+@all"):
            self.default.apply(rule)
        self.users: dict[str, User] = {"default": self.default}
        # for commands that the server runs itself, from the log or from the LAZY queue
        self.server = self.default.copy()
        self.log: deque[LogEntry] = deque()
        config = engine.config
        self._configure(config.requirepass, config.user, config.aclfile)
        config.on_change("requirepass", self.require_password)

    def _configure(self, password: str, users: Iterable[list[str]], file: str) -> None:
        if password:
            self.require_password(password)
        if users and file:
            raise ConfigError("give the users in the aclfile or as user directives, not both")
        seen: set[str] = set()
        for line in users:
            if not line:
                raise ConfigError("a user directive without a name")
            name, rules = line[0], [rule.encode("utf-8", "surrogateescape") for rule in line[1:]]
            if name in seen:
                raise ConfigError(f"user {name}: Duplicate user found. A user can only be defined once in config files")
            seen.add(name)
            try:
                self.set_user(name, [b"reset", *rules] if name == "default" else rules)
            except ReplyError as error:
                raise ConfigError(f"user {name}: {error}") from None
        if file:
            try:
                self.load()
            except ReplyError as error:
                raise ConfigError(str(error)) from None

    # -- logging in -------------------------------------------------------------------------------------------

    def log_in(self, session: Session, name: bytes, password: bytes) -> None:
        """Make the session this user's, or raise WrongPass."""
        user = self.users.get(_text(name))
        if user is None or not user.accepts(password):
            asked = session.current[1][0] if session.current is not None else b"AUTH"
            self.remember(session, Reason.AUTH, asked, user=_text(name))
            raise WrongPass
        session.user = user
        session.authenticated = True
        session.update_plain()

    def require_password(self, password: str) -> None:
        """The requirepass directive: the default user's one password; empty for none."""
        changed = self.default.copy()
        changed.apply(b"resetpass")
        changed.apply(b">" + password.encode("utf-8", "surrogateescape") if password else b"nopass")
        self._replace(changed)

    # -- the gate ---------------------------------------------------------------------------------------------

    def check(self, session: Session, command: Command, argv: Argv) -> None:
        """Raise NoPerm unless the session's user may run this."""
        refusal = self._refusal(session, command, argv, "toplevel")
        if refusal is not None:
            raise NoPerm(_REFUSED[refusal.reason].format(refusal.command.wire_name))

    def check_queued(self, session: Session, command: Command, argv: Argv) -> None:
        """The same at EXEC, for a command that was allowed when it was queued."""
        refusal = self._refusal(session, command, argv, "multi")
        if refusal is not None:
            raise NoPerm(
                "ACLs rules changed between the moment the transaction was accumulated and the EXEC call. "
                f"This command is no longer allowed for the following reason: {_LATER[refusal.reason]}"
            )

    def check_scripted(self, session: Session, command: Command, argv: Argv) -> None:
        """The same for a command that a script of the session calls."""
        refusal = self._refusal(session, command, argv, "lua")
        if refusal is not None:
            raise NoPerm(f"The user executing the script {_SCRIPTED[refusal.reason]}")

    def check_value(self, session: Session, value: Value | Change) -> None:
        """Raise NoPerm if a value makes the server write keys later that the user of the
        running command may not write.
        """
        if session.user.unrestricted or not isinstance(value, Stream | Change):
            return
        assert session.current is not None, "a restricted user reached the fast path"
        keys = value.dead_letter_keys()
        if keys and not session.user.may_write(*session.current, keys):
            self.remember(session, Reason.KEY, min(keys))
            raise NoPerm("this user has no permissions to write one of the keys that dead letters would go to")

    def _refusal(self, session: Session, command: Command, argv: Argv, context: str) -> Refusal | None:
        """Why the user may not run this, which is then in the log; None if it may."""
        refusal = None if session.user.unrestricted else session.user.refusal(command, argv)
        if refusal is not None:
            position = refusal.position
            refused = argv[position] if position else refusal.command.wire_name.encode()
            self.remember(session, refusal.reason, refused, context)
        return refusal

    def remember(
        self, session: Session, reason: Reason, refused: bytes, context: str = "toplevel", user: str | None = None
    ) -> None:
        """Put a refusal in the ACL log."""
        now = self._engine.clock.now
        name = session.user.name if user is None else user
        if context == "toplevel" and session.transaction is not None:
            context = "multi"
        client = session.describe()
        for entry in self.log:
            same = (entry.reason, entry.context, entry.object, entry.user) == (reason, context, refused, name)
            if same and now - entry.time <= LOG_GROUPING:
                self.log.remove(entry)
                entry.count += 1
                entry.time, entry.client = now, client
                self.log.appendleft(entry)
                return
        self.log.appendleft(LogEntry(reason, context, refused, name, now, client))
        while len(self.log) > self._engine.config.acllog_max_len:
            self.log.pop()

    # -- changing users ---------------------------------------------------------------------------------------

    def set_user(self, name: str, rules: Sequence[bytes]) -> None:
        """ACL SETUSER: all of the rules or, when one is refused, none of them."""
        _check_name(name)
        changed = self.users[name].copy() if name in self.users else self._new_user(name)
        for rule in join_selectors(rules):
            try:
                changed.apply(rule, self._new_channels)
            except RuleError as error:
                raise ReplyError(f"Error in ACL SETUSER modifier '{_text(rule)}': {error}") from None
        self._replace(changed)

    def delete_user(self, name: str) -> bool:
        """Delete a user and close its sessions. Whether it existed."""
        user = self.users.pop(name, None)
        if user is None:
            return False
        for session in list(self._engine.sessions.values()):
            if session.user is user:
                self._end(session)
        return True

    @property
    def _new_channels(self) -> bytes:
        return str(self._engine.config.acl_pubsub_default).encode()

    def _new_user(self, name: str) -> User:
        user = User(name)
        user.apply(self._new_channels)
        return user

    def _replace(self, changed: User) -> None:
        """Put a changed user in force, for connected sessions too."""
        user = self.users.setdefault(changed.name, changed)
        user.become(changed)
        for session in list(self._engine.sessions.values()):
            if session.user is not user:
                continue
            if user is self.default and user.needs_no_password:
                session.authenticated = True
            if session.subscribed and not _may_listen(session):
                self._end(session)
            session.update_plain()

    def _end(self, session: Session) -> None:
        """Close a session; the one that sent the command gets its reply first."""
        session.output.close(after_reply=session.current is not None)

    # -- the file ---------------------------------------------------------------------------------------------

    def _file(self) -> Path:
        if not self._engine.config.aclfile:
            raise ReplyError(
                "This Redis instance is not configured to use an ACL file. You may want to specify users via the "
                "ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file "
                "set) in order to store users in the Redis configuration."
            )
        return self._engine.config.path("aclfile")

    def describe(self) -> list[bytes]:
        """Every user as a line, in the order of names."""
        return [user.describe() for _, user in sorted(self.users.items())]

    def save(self) -> None:
        """Write the file anew: to a temporary file, synced, then renamed over the old one."""
        file = self._file()
        try:
            handle, temporary = tempfile.mkstemp(prefix=file.name + ".", dir=file.parent)
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(b"".join(line + b"\n" for line in self.describe()))
                    out.flush()
                    os.fsync(out.fileno())
                Path(temporary).replace(file)
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise ReplyError(f"There was an error trying to save the ACLs: {error.strerror}") from None

    def load(self) -> None:
        """Replace every user by the file's, or say which lines are wrong and change nothing.

        Connections of users that were removed, or have other rules or passwords now, are closed, except those of the
        default user.
        """
        file = self._file()
        try:
            lines = file.read_bytes().splitlines()
        except OSError as error:
            raise ReplyError(f"Error loading ACLs, opening file '{file}': {error.strerror}") from None
        users: dict[str, User] = {}
        errors: list[str] = []
        for number, line in enumerate(lines, 1):
            if line.strip():
                errors += self._load_line(f"{file}:{number}", number, line, users)
        if errors:
            errors.append("WARNING: ACL errors detected, no change to the previously active ACL rules was performed")
            raise ReplyError(" ".join(errors))
        for name, known in list(self.users.items()):
            if known is not self.default and (name not in users or users[name].describe() != known.describe()):
                self.delete_user(name)
        if "default" not in users:
            users["default"] = self._new_user("default")
            for rule in (b"on", b"nopass", b"~*", b"&*", b"+@all"):
                users["default"].apply(rule)
        for user in users.values():
            self._replace(user)

    def _load_line(self, where: str, number: int, line: bytes, users: dict[str, User]) -> list[str]:
        """Add the line's user; answers what is wrong with it."""
        words = line.split()
        if words[0] != b"user" or len(words) < 2:
            return [f"{where} should start with user keyword followed by the username."]
        name = _text(words[1])
        if name in users:
            return [f"WARNING: Duplicate user '{name}' found on line {number}."]
        user = users[name] = self._new_user(name)
        try:
            _check_name(name)
            rules = join_selectors(words[2:])
        except ReplyError as error:
            return [f"{where}: {error}"]
        for rule in rules:
            try:
                user.apply(rule, self._new_channels)
            except RuleError as error:
                return [f"{where}: Error in applying operation '{_text(rule)}': {error}."]
        return []


def _check_name(name: str) -> None:
    if not name:
        raise ReplyError("Usernames can't be empty")
    if has_space(name.encode("utf-8", "surrogateescape")):
        raise ReplyError("Usernames can't contain spaces or null characters")


def join_selectors(rules: Sequence[bytes]) -> list[bytes]:
    """Rules with each selector, which may be spread over several words, as one.

    >>> join_selectors([b"on", b"(+get", b"~a*)"])
    [b'on', b'(+get ~a*)']
    """
    joined: list[bytes] = []
    opened: list[bytes] = []
    for rule in rules:
        if opened or rule.startswith(b"("):
            opened.append(rule)
            if rule.endswith(b")"):
                joined.append(b" ".join(opened))
                opened = []
        else:
            joined.append(rule)
    if opened:
        raise ReplyError(f"Unmatched parenthesis in acl selector starting at '{_text(opened[0])}'.")
    return joined


_REFUSED = {
    Reason.COMMAND: "this user has no permissions to run the '{}' command",
    Reason.KEY: "this user has no permissions to access one of the keys used as arguments",
    Reason.CHANNEL: "this user has no permissions to access one of the channels used as arguments",
}
_LATER = {
    Reason.COMMAND: "no permission to execute the command or subcommand",
    Reason.KEY: "no permission to touch the specified keys",
    Reason.CHANNEL: "no permission to access one of the channels used as arguments to the command",
}
_SCRIPTED = {
    Reason.COMMAND: "can't run this command or subcommand",
    Reason.KEY: "can't access at least one of the keys mentioned in the command arguments",
    Reason.CHANNEL: "can't publish to the channel mentioned in the command",
}


def _may_listen(session: Session) -> bool:
    """Whether the session's user may still use everything it subscribed to."""
    selectors = (session.user.root, *session.user.selectors)
    literal = all(
        any(s.allows_channel(name, False) for s in selectors) for name in session.channels | session.shard_channels
    )
    return literal and all(any(s.allows_channel(name, True) for s in selectors) for name in session.patterns)


def _digest(password: bytes) -> bytes:
    return hashlib.sha256(password).hexdigest().encode()


def _checked_hash(text: bytes) -> bytes:
    if len(text) != 64 or not _HEXADECIMAL.issuperset(text):
        raise RuleError(_BAD_HASH)
    return text


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
