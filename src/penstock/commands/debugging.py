"""DEBUG: faults and inspection for tests and operators.

The directive enable-debug-command says who may use it: each handler calls `check_allowed` first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from penstock.commands.objects import encoding
from penstock.engine.arguments import to_float, to_integer
from penstock.engine.declarations import Access, Argv, Beyond, Effect, Flag, Reach, Reply, command, key, keys
from penstock.engine.directive_kinds import parse_memory
from penstock.engine.keyspace.databases import Database, Value
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, bad_subcommand, no_such_key
from penstock.protocol.resp import OK, Members, Push, Raw, Status, Verbatim, encode
from penstock.types import codec, digest

logger = logging.getLogger("penstock.server")
_NO_LINE_ENDS = bytes.maketrans(b"\r\n", b"  ")

FLAGS = Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE

LONGEST_SLEEP = 1e9
"""Seconds; a longer sleep would be an error of the operating system."""

_REFUSED = (
    'DEBUG command not allowed. If the enable-debug-command option is set to "local", you can run it from a local '
    "connection, otherwise you need to set this option in the configuration file, and then restart the server."
)


def check_allowed(session: Session) -> None:
    if not session.is_allowed(session.engine.config.enable_debug_command):
        raise ReplyError(_REFUSED)


@command(
    "DEBUG SLEEP",
    arity=3,
    flags=FLAGS,
    group="server",
    syntax="seconds",
    cost="O(1), and no client is served during the sleep",
)
def debug_sleep(session: Session, argv: Argv) -> Reply:
    """Stop the whole server for so many seconds, fractions allowed."""
    check_allowed(session)
    time.sleep(min(max(to_float(argv[2]), 0.0), LONGEST_SLEEP))
    if session.engine.scripting.running is None:  # time stands still in a script
        session.engine.clock.refresh()
    return OK


@command(
    "DEBUG OBJECT",
    arity=3,
    flags=FLAGS | Flag.PEEKS,
    keys=key(2, Access.READ, Effect.SIGHT),
    group="server",
    syntax="key",
    cost="O(N) with N elements in the value",
)
def debug_object(session: Session, argv: Argv) -> Reply:
    """Describe how the value at key is stored."""
    check_allowed(session)
    value = session.db.get(argv[2])
    if value is None:
        raise no_such_key()
    return Status(
        b"Value at:0x%x refcount:1 encoding:%b serializedlength:%d lru:0 lru_seconds_idle:0"
        % (id(value), encoding(value, session.engine.config), len(codec.dump(value)))
    )


@command("DEBUG SET-ACTIVE-EXPIRE", arity=3, flags=FLAGS, group="server", syntax="0 | 1")
def debug_set_active_expire(session: Session, argv: Argv) -> Reply:
    """Turn the background deletion of expired keys off or on."""
    check_allowed(session)
    session.engine.active_expiry = argv[2] != b"0"
    return OK


# -- for test suites ------------------------------------------------------------------------------------------


@command(
    "DEBUG DIGEST",
    arity=2,
    flags=FLAGS,
    group="server",
    cost="O(N) with N elements in all databases",
    beyond=Beyond(Reach.SERVER, "looks at every key"),
)
def debug_digest(session: Session, argv: Argv) -> Reply:
    """Answer a fingerprint of all data, which does not depend on the order; zeros if there is no data."""
    check_allowed(session)
    databases = session.engine.keyspace.databases
    return _hexadecimal(digest.of_databases(_rows(database) for database in databases))


def _rows(database: Database) -> Iterator[tuple[bytes, Value, bool]]:
    for name in database.live_keys():
        yield name, database.data[name], name in database.expires


@command(
    "DEBUG DIGEST-VALUE",
    arity=-2,
    flags=FLAGS | Flag.PEEKS,
    keys=keys(2, -1, Access.READ),
    group="server",
    syntax="[key ...]",
    cost="O(N) with N elements in the values",
)
def debug_digest_value(session: Session, argv: Argv) -> Reply:
    """Answer a fingerprint of each value, which does not depend on its key's name; zeros for a missing key."""
    check_allowed(session)
    db = session.db
    found = [(db.get(name), db.expires_at(name) is not None) for name in argv[2:]]
    return [_hexadecimal(digest.NOTHING if value is None else digest.of_value(value, until)) for value, until in found]


def _hexadecimal(value: bytes) -> Status:
    return Status(value.hex().encode())


_TEXT = "This is a verbatim\nstring"
_BIG = b"1234567999999999999999999999999999999"
_AFTER_ATTRIBUTE = b"Some real reply following the attribute"
_AFTER_PUSH = b"Some real reply following the push reply"
_PROTOCOL: dict[bytes, tuple[Reply, Reply]] = {
    b"STRING": (b"Hello World", b"Hello World"),
    b"INTEGER": (12345, 12345),
    b"DOUBLE": (b"3.141", Raw(b",3.141\r\n")),
    b"BIGNUM": (_BIG, Raw(b"(" + _BIG + b"\r\n")),
    b"NULL": (None, None),
    b"ARRAY": ([0, 1, 2], [0, 1, 2]),
    b"SET": (Members([0, 1, 2]), Members([0, 1, 2])),
    b"MAP": ([0, 0, 1, 1, 2, 0], Raw(b"%3\r\n:0\r\n#f\r\n:1\r\n#t\r\n:2\r\n#f\r\n")),
    b"ATTRIB": (
        _AFTER_ATTRIBUTE,
        Raw(b"|1\r\n" + encode(b"key-popularity") + encode([b"key:123", 90]) + encode(_AFTER_ATTRIBUTE)),
    ),
    b"PUSH": (
        ReplyError("RESP2 is not supported by this command"),
        Raw(encode(Push([b"server-cpu-usage", 42]), 3) + encode(_AFTER_PUSH)),
    ),
    b"VERBATIM": (Verbatim(_TEXT), Verbatim(_TEXT)),
    b"TRUE": (1, Raw(b"#t\r\n")),
    b"FALSE": (0, Raw(b"#f\r\n")),
}
"""What DEBUG PROTOCOL answers in RESP2 and in RESP3."""


@command(
    "DEBUG PROTOCOL",
    arity=3,
    flags=FLAGS,
    group="server",
    syntax="string | integer | double | bignum | null | array | set | map | attrib | push | verbatim | true | false",
)
def debug_protocol(session: Session, argv: Argv) -> Reply:
    """Answer an example of a type of the protocol, so that a client can be tested with it."""
    check_allowed(session)
    examples = _PROTOCOL.get(argv[2].upper())
    if examples is None:
        names = "|".join(name.decode().lower() for name in _PROTOCOL)
        raise ReplyError(f"Wrong protocol type name. Please use one of the following: {names}")
    reply = examples[session.protocol - 2]
    if isinstance(reply, ReplyError):
        raise reply
    return reply


@command("DEBUG ERROR", arity=3, flags=FLAGS, group="server", syntax="message")
def debug_error(session: Session, argv: Argv) -> Reply:
    """Answer an error with these words, the first of which is its code."""
    check_allowed(session)
    return Raw(b"-" + argv[2].translate(_NO_LINE_ENDS) + b"\r\n")


@command("DEBUG LOG", arity=3, flags=FLAGS, group="server", syntax="message")
def debug_log(session: Session, argv: Argv) -> Reply:
    """Write a line to the server's log."""
    check_allowed(session)
    logger.warning("DEBUG LOG: %s", argv[2].decode("utf-8", "backslashreplace"))
    return OK


@command("DEBUG SET-DISABLE-DENY-SCRIPTS", arity=3, flags=FLAGS, group="server", syntax="0 | 1")
def debug_set_disable_deny_scripts(session: Session, argv: Argv) -> Reply:
    """Let scripts call DEBUG, so that they can be tested with DEBUG PROTOCOL. Other commands stay refused."""
    check_allowed(session)
    session.engine.scripting.may_debug = argv[2] != b"0"
    return OK


@command("DEBUG QUICKLIST-PACKED-THRESHOLD", arity=3, flags=FLAGS, group="server", syntax="bytes")
def debug_quicklist_packed_threshold(session: Session, argv: Argv) -> Reply:
    """Accept the size beyond which Redis stores a list element by itself. There is no such size here."""
    check_allowed(session)
    try:
        size = parse_memory(argv[2].decode("ascii", "replace"))
    except ValueError:
        size = 1 << 32
    if size >= 1 << 32:
        raise ReplyError("argument must be a memory value bigger than 1 and smaller than 4gb")
    return OK


@command(
    "DEBUG REPLYBUFFER",
    arity=4,
    flags=FLAGS,
    group="server",
    syntax="PEAK-RESET-TIME NEVER | RESET | milliseconds | RESIZING 0 | 1",
)
def debug_replybuffer(session: Session, argv: Argv) -> Reply:
    """Accept settings for the reply buffers of Redis. Reply buffers are not resized here."""
    check_allowed(session)
    option = argv[2].upper()
    if option not in (b"PEAK-RESET-TIME", b"RESIZING"):
        raise bad_subcommand(argv)
    if option == b"PEAK-RESET-TIME" and argv[3].upper() not in (b"NEVER", b"RESET"):
        to_integer(argv[3])
    return OK
