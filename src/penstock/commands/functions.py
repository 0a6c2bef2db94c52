"""FUNCTION and FCALL, answered as by a server that has no function libraries, because clients and test suites ask.

EVAL is the only way to run Lua here; a library of functions cannot be loaded. The other commands answer what Redis
answers while no library is loaded.
"""

from __future__ import annotations

from penstock.engine.declarations import Access, Argv, Flag, Reply, command, counted_keys
from penstock.engine.session import Session
from penstock.protocol.errors import NotBusy, ReplyError
from penstock.protocol.resp import OK

_NO_LIBRARIES = b"\n\x00]\x9b\\@\x0f\x7f\xa2\xda"
"""What FUNCTION DUMP of Redis 7.0 answers without libraries: the version of the format and its checksum."""
_FCALL = Flag.NOSCRIPT | Flag.STALE | Flag.MOVABLEKEYS
_POLICIES = (b"FLUSH", b"APPEND", b"REPLACE")


def _not_supported() -> ReplyError:
    return ReplyError("functions are not supported: use EVAL")


@command(
    "FUNCTION FLUSH",
    arity=-2,
    flags=Flag.WRITE | Flag.NOSCRIPT,
    group="scripting",
    syntax="[ASYNC | SYNC]",
    cost="O(1)",
)
def function_flush(session: Session, argv: Argv) -> Reply:
    """Answer OK: there is no library to delete."""
    if len(argv) > 3:
        raise ReplyError(
            f"unknown subcommand or wrong number of arguments for '{argv[1].decode()}'. Try FUNCTION HELP."
        )
    if len(argv) == 3 and argv[2].upper() not in (b"SYNC", b"ASYNC"):
        raise ReplyError("FUNCTION FLUSH only supports SYNC|ASYNC option")
    return OK


@command(
    "FUNCTION LIST",
    arity=-2,
    flags=Flag.NOSCRIPT,
    group="scripting",
    syntax="[LIBRARYNAME pattern] [WITHCODE]",
    cost="O(1)",
)
def function_list(session: Session, argv: Argv) -> Reply:
    """Answer an empty list: there is no library."""
    words = iter(argv[2:])
    for word in words:
        option = word.upper()
        if option == b"LIBRARYNAME":
            if next(words, None) is None:
                raise ReplyError("library name argument was not given")
        elif option != b"WITHCODE":
            raise ReplyError(f"Unknown argument {word.decode(errors='replace')}")
    return []


@command("FUNCTION STATS", arity=2, flags=Flag.NOSCRIPT | Flag.ALLOW_BUSY, group="scripting", cost="O(1)")
def function_stats(session: Session, argv: Argv) -> Reply:
    """Answer that no function runs, and that there is none."""
    session.engine.scripting.refuse_if_busy()
    return {
        b"running_script": None,
        b"engines": {b"LUA": {b"libraries_count": 0, b"functions_count": 0}},
    }


@command("FUNCTION DUMP", arity=2, flags=Flag.NOSCRIPT, group="scripting", cost="O(1)")
def function_dump(session: Session, argv: Argv) -> Reply:
    """Answer the payload that holds no library, for FUNCTION RESTORE here or on a Redis."""
    return _NO_LIBRARIES


@command(
    "FUNCTION RESTORE",
    arity=-3,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.NOSCRIPT,
    group="scripting",
    syntax="serialized-value [FLUSH | APPEND | REPLACE]",
    cost="O(1)",
)
def function_restore(session: Session, argv: Argv) -> Reply:
    """Accept the payload that holds no library, and refuse any other."""
    if len(argv) > 4 or (len(argv) == 4 and argv[3].upper() not in _POLICIES):
        raise ReplyError("Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.")
    if argv[2] == _NO_LIBRARIES:
        return OK
    if len(argv[2]) <= len(_NO_LIBRARIES):
        raise ReplyError("DUMP payload version or checksum are wrong")
    raise _not_supported()


@command(
    "FUNCTION LOAD",
    arity=-3,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.NOSCRIPT,
    group="scripting",
    syntax="[REPLACE] function-code",
    cost="O(1)",
)
def function_load(session: Session, argv: Argv) -> Reply:
    """Refuse: libraries of functions are not supported."""
    raise _not_supported()


@command(
    "FUNCTION DELETE", arity=3, flags=Flag.WRITE | Flag.NOSCRIPT, group="scripting", syntax="library-name", cost="O(1)"
)
def function_delete(session: Session, argv: Argv) -> Reply:
    """Answer that there is no such library."""
    raise ReplyError("Library not found")


@command("FUNCTION KILL", arity=2, flags=Flag.NOSCRIPT | Flag.ALLOW_BUSY, group="scripting", cost="O(1)")
def function_kill(session: Session, argv: Argv) -> Reply:
    """Answer that no function runs."""
    scripting = session.engine.scripting
    scripting.killable()
    scripting.refuse_if_busy()
    raise NotBusy


@command(
    "FCALL",
    arity=-3,
    flags=_FCALL | Flag.MAY_REPLICATE,
    keys=counted_keys(2, Access.UPDATE),
    group="scripting",
    syntax="function numkeys [key [key ...]] [arg [arg ...]]",
    cost="O(1)",
)
def fcall(session: Session, argv: Argv) -> Reply:
    """Answer that there is no such function."""
    raise ReplyError("Function not found")


@command(
    "FCALL_RO",
    arity=-3,
    flags=_FCALL | Flag.READONLY,
    keys=counted_keys(2, Access.READ),
    group="scripting",
    syntax="function numkeys [key [key ...]] [arg [arg ...]]",
    cost="O(1)",
)
def fcall_ro(session: Session, argv: Argv) -> Reply:
    """Answer that there is no such function."""
    raise ReplyError("Function not found")
