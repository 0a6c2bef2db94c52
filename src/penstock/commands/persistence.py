"""Commands for what is on disk: SAVE, BGSAVE, LASTSAVE, BGREWRITEAOF, SHUTDOWN, DEBUG RELOAD and LOADAOF."""

from __future__ import annotations

from penstock.commands.debugging import check_allowed
from penstock.engine.declarations import Argv, Beyond, Flag, Reach, Reply, command
from penstock.engine.interfaces import Persistence
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, syntax_error
from penstock.protocol.resp import NO_REPLY, OK, Status

_CHILD = Flag.ADMIN | Flag.NOSCRIPT
_EVERYTHING = Beyond(Reach.SERVER, "looks at every key")


def _storage(session: Session) -> Persistence:
    if session.engine.persistence is None:
        raise ReplyError("this server keeps nothing on disk")
    return session.engine.persistence


@command("SAVE", arity=1, flags=_CHILD | Flag.NO_MULTI, group="server", cost="O(N) with N keys", beyond=_EVERYTHING)
def save(session: Session, argv: Argv) -> Reply:
    """Write a snapshot of everything to disk; all clients wait until it is done."""
    _storage(session).save()
    return OK


@command("BGSAVE", arity=-1, flags=_CHILD, group="server", syntax="[SCHEDULE]", cost="O(1)", beyond=_EVERYTHING)
def bgsave(session: Session, argv: Argv) -> Reply:
    """Write a snapshot of everything to disk, in the background."""
    if len(argv) > 2 or (len(argv) == 2 and argv[1].upper() != b"SCHEDULE"):
        raise syntax_error()
    started = _storage(session).start_save(now=session.may_block, may_schedule=len(argv) == 2)
    return Status(b"Background saving started" if started else b"Background saving scheduled")


@command(
    "LASTSAVE", arity=1, flags=Flag.LOADING | Flag.STALE | Flag.FAST, group="server", categories=["admin", "dangerous"]
)
def lastsave(session: Session, argv: Argv) -> Reply:
    """Answer when the last snapshot was written, in seconds since 1970."""
    return _storage(session).last_save


@command("BGREWRITEAOF", arity=1, flags=_CHILD, group="server", beyond=_EVERYTHING)
def bgrewriteaof(session: Session, argv: Argv) -> Reply:
    """Rewrite the append-only log in the background, so that it holds no more than the current data."""
    if _storage(session).start_rewrite(now=session.may_block):
        return Status(b"Background append only file rewriting started")
    return Status(b"Background append only file rewriting scheduled")


@command(
    "SHUTDOWN",
    arity=-1,
    flags=_CHILD | Flag.LOADING | Flag.STALE | Flag.NO_MULTI | Flag.ALLOW_BUSY,
    group="server",
    syntax="[NOSAVE | SAVE] [NOW] [FORCE] [ABORT]",
    cost="O(N) with N keys if a snapshot is written",
)
def shutdown(session: Session, argv: Argv) -> Reply:
    """Write what is not on disk yet and stop the server.

    A last snapshot is written if there are save rules or SAVE is given, and not with NOSAVE. FORCE stops the server
    even if writing fails. Commands that run in threads get at most five seconds to end; with NOW they get none. While a
    script is busy, only NOSAVE stops the server: nothing of the script is kept, and its client gets no reply. ABORT is
    accepted for Redis's waiting for replicas, which this server does not do.
    """
    words = {word.upper() for word in argv[1:]}
    if words - {b"NOSAVE", b"SAVE", b"NOW", b"FORCE", b"ABORT"} or {b"NOSAVE", b"SAVE"} <= words:
        raise syntax_error()
    if b"ABORT" in words:
        if len(words) > 1:
            raise syntax_error()
        raise ReplyError("No shutdown in progress.")
    scripting = session.engine.scripting
    if b"NOSAVE" not in words:
        scripting.refuse_if_busy()
    if session.engine.workers.jobs and b"NOW" not in words and scripting.running is None:  # else the loop stands still
        return session.engine.workers.wait_until_idle(session)
    save = True if b"SAVE" in words else False if b"NOSAVE" in words else None
    _storage(session).shut_down(save, force=b"FORCE" in words)
    return NO_REPLY


_DEBUG = Flag.ADMIN | Flag.NOSCRIPT | Flag.STALE  # not LOADING: the end of a reload would end the loading at start


@command(
    "DEBUG RELOAD",
    arity=-2,
    flags=_DEBUG,
    group="server",
    syntax="[NOSAVE] [NOFLUSH] [MERGE]",
    cost="O(N) with N keys",
    beyond=_EVERYTHING,
)
def debug_reload(session: Session, argv: Argv) -> Reply:
    """Write a snapshot, forget everything, and read it back."""
    check_allowed(session)
    words = {word.upper() for word in argv[2:]}
    if words - {b"NOSAVE", b"NOFLUSH", b"MERGE"}:
        raise ReplyError("DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.")
    _storage(session).reload(save=b"NOSAVE" not in words, flush=b"NOFLUSH" not in words)
    return OK


@command("DEBUG LOADAOF", arity=2, flags=_DEBUG, group="server", cost="O(N) with N logged commands", beyond=_EVERYTHING)
def debug_loadaof(session: Session, argv: Argv) -> Reply:
    """Forget everything and read the append-only log."""
    check_allowed(session)
    _storage(session).reload_log()
    return OK
