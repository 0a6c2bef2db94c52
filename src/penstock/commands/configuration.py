"""CONFIG: the directives of engine/config.py, read and changed while the server runs."""

from __future__ import annotations

from pathlib import Path

from penstock.engine.access.users import User
from penstock.engine.blocking import Waiter
from penstock.engine.config import ChangeRefused, Config
from penstock.engine.config_file import rewrite
from penstock.engine.declarations import Argv, Beyond, Flag, Reach, Reply, command
from penstock.engine.directives import DIRECTIVES, Directive, find_directive
from penstock.engine.dispatch import Engine
from penstock.engine.globs import compile_glob
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, syntax_error
from penstock.protocol.resp import NO_REPLY, OK, encode

OPERATOR = Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


# -- CONFIG GET -----------------------------------------------------------------------------------------------


def _matching(pattern: bytes, config: Config) -> dict[str, str]:
    """Values by name; a name without wildcards comes back as it was spelt, old names included."""
    if not any(mark in pattern for mark in b"*?["):
        name = _text(pattern)
        directive = find_directive(name)
        return {name: config.show(directive.name)} if directive is not None and not directive.repeated else {}
    matches = compile_glob(pattern, ignore_case=True)
    return {
        name: config.show(directive.name)
        for directive in DIRECTIVES.values()
        if not directive.repeated and not directive.hidden
        for name in (directive.name, *directive.aliases)
        if matches(name.encode())
    }


@command(
    "CONFIG GET",
    arity=-3,
    flags=OPERATOR,
    group="server",
    syntax="parameter [parameter ...]",
    cost="O(N) with N directives",
)
def config_get(session: Session, argv: Argv) -> Reply:
    """Answer the names and values of the directives that match any of the patterns."""
    found: dict[str, str] = {}
    for pattern in argv[2:]:
        found |= _matching(pattern, session.engine.config)
    return found


# -- CONFIG SET -----------------------------------------------------------------------------------------------


def _failed(name: str, why: str) -> ReplyError:
    return ReplyError(f"CONFIG SET failed (possibly related to argument '{name}') - {why}")


def _check_changeable(session: Session, directive: Directive, name: str) -> None:
    if not directive.mutable:
        raise _failed(name, "can't set immutable config")
    if directive.protected and not session.is_allowed(session.engine.config.enable_protected_configs):
        raise _failed(name, "can't set protected config")


def _changes_what_commands_may_do(argv: Argv) -> bool:
    """Whether a limit on values changes: queued LAZY commands must run under the old limit, so they run first."""
    return any(word.lower() == b"proto-max-bulk-len" for word in argv[2::2])


@command(
    "CONFIG SET",
    arity=-4,
    flags=OPERATOR,
    group="server",
    syntax="parameter value [parameter value ...]",
    cost="O(N) with N directives",
    beyond=Beyond(Reach.SERVER, "changes how long a value may be", _changes_what_commands_may_do),
)
def config_set(session: Session, argv: Argv) -> Reply:
    """Change directives: all of them or, if one is refused, none.

    `appendonly yes` is answered when the log holds all data, so that every later change is in the log.
    """
    if len(argv) % 2:
        raise syntax_error()
    found: list[tuple[Directive, str]] = []
    for raw in argv[2::2]:
        directive = find_directive(_text(raw))
        if directive is None or directive.repeated:
            raise ReplyError(f"Unknown option or number of arguments for CONFIG SET - '{_text(raw)}'")
        found.append((directive, _text(raw)))
    for at, (directive, name) in enumerate(found):
        _check_changeable(session, directive, name)
        if any(directive is earlier for earlier, _ in found[:at]):
            raise _failed(name, "duplicate parameter")
    values = [_text(raw) for raw in argv[3::2]]
    log = next((name for directive, name in found if directive.name == "appendonly"), None)
    if log is not None and not session.may_block and not session.engine.config.appendonly and "yes" in values:
        raise _failed(log, "it waits for the first file of the log, which a transaction cannot")
    try:
        session.engine.config.change([(directive, value) for (directive, _), value in zip(found, values, strict=True)])
    except ChangeRefused as refusal:
        raise _failed(next(name for directive, name in found if directive is refusal.directive), str(refusal)) from None
    return _once_the_log_began(session, log) if log is not None else OK


def _once_the_log_began(session: Session, name: str) -> Reply:
    """Answer OK once a crash would keep all that is written from now on."""
    engine = session.engine
    assert session.current is not None
    command, argv = session.current
    waiter = Waiter(session, command, argv, [], 0, None)

    def tell(problem: str | None) -> None:
        def outcome(session: Session, argv: Argv) -> Reply:
            if problem is not None:
                raise _failed(name, f"the log could not be begun: {problem}")
            return OK

        if session.waiter is waiter:  # else the client has gone away
            engine.blocking.leave(waiter)
            try:
                reply = engine.call(session, command, argv, outcome)
            except ReplyError as error:
                reply = error
            session.unblocked(encode(reply, session.protocol), waiter.silent)

    if engine.persistence is None or not engine.persistence.when_log_began(tell):
        return OK
    engine.blocking.enter(waiter)
    return NO_REPLY


# -- the rest -------------------------------------------------------------------------------------------------


@command("CONFIG RESETSTAT", arity=2, flags=OPERATOR, group="server")
def config_resetstat(session: Session, argv: Argv) -> Reply:
    """Set the counters that INFO shows back to zero."""
    session.engine.stats.reset()
    session.engine.keyspace.expired_count = 0
    session.engine.lazy.reset()
    return OK


def _user_lines(engine: Engine) -> list[str]:
    """Users as `user` directives. The default user needs one only for what requirepass does not say."""
    plain = User("default")
    password = engine.config.requirepass.encode("utf-8", "surrogateescape")
    for rule in (b"on", b">" + password if password else b"nopass", b"~*", b"&*", b"+@all"):
        plain.apply(rule)
    lines = []
    for user in engine.acl.users.values():
        if user.describe() != plain.describe():
            _, name, rules = _text(user.describe()).split(" ", 2)
            lines.append(f"{name} {rules}")  # they begin without rights; `user default` resets that user
    return lines


@command("CONFIG REWRITE", arity=2, flags=OPERATOR, group="server")
def config_rewrite(session: Session, argv: Argv) -> Reply:
    """Write the directives in force to the configuration file, keeping its comments and its order."""
    config = session.engine.config
    if config.file is None:
        raise ReplyError("The server is running without a config file")
    users = [] if config.aclfile else _user_lines(session.engine)
    try:
        rewrite(Path(config.file), config, users)
    except OSError as error:
        raise ReplyError(f"Rewriting config file: {error.strerror}") from None
    return OK
