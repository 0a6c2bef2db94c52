"""Scripts: EVAL, EVALSHA and SCRIPT. engine/scripting.py runs them."""

from __future__ import annotations

from penstock.engine.arguments import to_integer
from penstock.engine.declarations import Access, Argv, Flag, Reply, command, counted_keys
from penstock.engine.keyspace.databases import Database
from penstock.engine.scripting import Script
from penstock.engine.session import Session
from penstock.engine.stream_history import Foreseen
from penstock.protocol.errors import NoScript, ReplyError
from penstock.protocol.resp import OK
from penstock.types.stream.stream import Stream

_EVAL = Flag.NOSCRIPT | Flag.STALE | Flag.MOVABLEKEYS | Flag.SKIP_MONITOR
_COST = "That of the script"
SHA_LENGTH = 40


def _run(session: Session, argv: Argv, script: Script, read_only: bool = False) -> Reply:
    last_key = 3 + _key_count(argv)
    return session.engine.scripting.run(session, argv, script, argv[3:last_key], argv[last_key:], read_only)


def _key_count(argv: Argv) -> int:
    count = to_integer(argv[2])
    if count > len(argv) - 3:
        raise ReplyError("Number of keys can't be greater than number of args")
    if count < 0:
        raise ReplyError("Number of keys can't be negative")
    return count


def _show(session: Session) -> None:
    """Show the call to MONITOR before the commands of the script, once."""
    monitors = session.engine.monitors
    if monitors.sessions and session.current is not None and session.fetched is None:
        monitors.feed(session, *session.current)


def _source(session: Session, argv: Argv) -> Script:
    _show(session)
    _key_count(argv)
    return session.engine.scripting.load(argv[1])


def _loaded(session: Session, argv: Argv) -> Script:
    _show(session)
    if len(argv[1]) == SHA_LENGTH:  # anything that cannot be a SHA1 is refused before the other arguments are checked
        _key_count(argv)
    script = session.engine.scripting.scripts.get(argv[1].lower())
    if script is None:
        raise NoScript
    return script


def _foresee(session: Session, database: Database, argv: Argv) -> Foreseen:
    """What a script inside a transaction or ONCE will read of the files of its keys."""
    last_key = 3 + _key_count(argv)
    keys = argv[3:last_key]
    if not any(type(value := database.data.get(name)) is Stream and value.messages.history for name in keys):
        return Foreseen([])
    scripting = session.engine.scripting
    by_sha = argv[0].upper().startswith(b"EVALSHA")
    script = scripting.scripts.get(argv[1].lower()) if by_sha else scripting.load(argv[1])
    if script is None:
        return Foreseen([])
    return scripting.rehearse(session, database, argv, script, keys, argv[last_key:])


@command(
    "EVAL",
    arity=-3,
    flags=_EVAL,
    keys=counted_keys(2, Access.UPDATE),
    group="scripting",
    syntax="script numkeys [key [key ...]] [arg [arg ...]]",
    cost=_COST,
    foresees=_foresee,
)
def eval_(session: Session, argv: Argv) -> Reply:
    """Run a Lua script and answer what it returns; no other command runs in between.

    The script finds its arguments in KEYS and ARGV.
    """
    return _run(session, argv, _source(session, argv))


@command(
    "EVALSHA",
    arity=-3,
    flags=_EVAL,
    keys=counted_keys(2, Access.UPDATE),
    group="scripting",
    syntax="sha1 numkeys [key [key ...]] [arg [arg ...]]",
    cost=_COST,
    foresees=_foresee,
)
def evalsha(session: Session, argv: Argv) -> Reply:
    """Run a script that was loaded before, by the SHA1 of its text."""
    return _run(session, argv, _loaded(session, argv))


@command(
    "EVAL_RO",
    arity=-3,
    flags=_EVAL | Flag.READONLY,
    keys=counted_keys(2, Access.READ),
    group="scripting",
    syntax="script numkeys [key [key ...]] [arg [arg ...]]",
    cost=_COST,
    foresees=_foresee,
)
def eval_ro(session: Session, argv: Argv) -> Reply:
    """Run a Lua script that may read but not write."""
    return _run(session, argv, _source(session, argv), read_only=True)


@command(
    "EVALSHA_RO",
    arity=-3,
    flags=_EVAL | Flag.READONLY,
    keys=counted_keys(2, Access.READ),
    group="scripting",
    syntax="sha1 numkeys [key [key ...]] [arg [arg ...]]",
    cost=_COST,
    foresees=_foresee,
)
def evalsha_ro(session: Session, argv: Argv) -> Reply:
    """Run a script that was loaded before and that may read but not write."""
    return _run(session, argv, _loaded(session, argv), read_only=True)


@command(
    "SCRIPT LOAD",
    arity=3,
    flags=Flag.NOSCRIPT | Flag.STALE,
    group="scripting",
    syntax="script",
    cost="O(N) with N bytes of text",
)
def script_load(session: Session, argv: Argv) -> Reply:
    """Compile a script for EVALSHA and answer the SHA1 of its text."""
    return session.engine.scripting.load(argv[2]).sha


@command(
    "SCRIPT EXISTS", arity=-3, flags=Flag.NOSCRIPT, group="scripting", syntax="sha1 [sha1 ...]", cost="O(1) a script"
)
def script_exists(session: Session, argv: Argv) -> Reply:
    """Answer 1 for every script that is loaded, 0 for every other."""
    return [int(sha.lower() in session.engine.scripting.scripts) for sha in argv[2:]]


@command(
    "SCRIPT FLUSH",
    arity=-2,
    flags=Flag.NOSCRIPT,
    group="scripting",
    syntax="[ASYNC | SYNC]",
    cost="O(N) with N scripts",
)
def script_flush(session: Session, argv: Argv) -> Reply:
    """Forget every script."""
    if len(argv) > 3 or (len(argv) == 3 and argv[2].upper() not in (b"SYNC", b"ASYNC")):
        raise ReplyError("SCRIPT FLUSH only support SYNC|ASYNC option")
    session.engine.scripting.forget_scripts()
    return OK


@command("SCRIPT KILL", arity=2, flags=Flag.NOSCRIPT | Flag.ALLOW_BUSY, group="scripting")
def script_kill(session: Session, argv: Argv) -> Reply:
    """End the script that blocks the server, unless it has written already."""
    session.engine.scripting.kill()
    return OK


@command("SCRIPT DEBUG", arity=3, flags=Flag.NOSCRIPT, group="scripting", syntax="<YES | SYNC | NO>")
def script_debug(session: Session, argv: Argv) -> Reply:
    """Accept NO; there is no debugger to turn on."""
    if not session.may_block:
        raise ReplyError("SCRIPT DEBUG must be called outside a pipeline")
    if argv[2].upper() == b"NO":
        return OK
    if argv[2].upper() in (b"YES", b"SYNC"):
        raise ReplyError("SCRIPT DEBUG is not supported: this server has no Lua debugger")
    raise ReplyError("Use SCRIPT DEBUG YES/SYNC/NO")
