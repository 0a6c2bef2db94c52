"""ACL: users and what they may do.

The rules are in engine/access/permissions.py, the users in engine/access/users.py.
"""

from __future__ import annotations

import secrets

from penstock.engine.access.permissions import Reason, Selector
from penstock.engine.access.users import LogEntry
from penstock.engine.arguments import to_integer
from penstock.engine.declarations import CATEGORIES, Argv, Flag, Reply, command
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, bad_subcommand
from penstock.protocol.resp import OK, Members

_PLAIN = Flag.NOSCRIPT | Flag.LOADING | Flag.STALE
_ADMIN = _PLAIN | Flag.ADMIN
_MAX_PASSWORD_BITS = 4096
_MAX_LOG_ROWS = 10


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


# -- users ----------------------------------------------------------------------------------------------------


@command("ACL WHOAMI", arity=2, flags=_PLAIN, group="server")
def acl_whoami(session: Session, argv: Argv) -> Reply:
    """Answer the name of the user this connection is logged in as."""
    return session.user.name


@command("ACL USERS", arity=2, flags=_ADMIN, group="server", cost="O(N) with N users")
def acl_users(session: Session, argv: Argv) -> Reply:
    """Answer the names of all users."""
    return sorted(session.engine.acl.users)


@command("ACL LIST", arity=2, flags=_ADMIN, group="server", cost="O(N) with N users")
def acl_list(session: Session, argv: Argv) -> Reply:
    """Answer all users with their rules, as the ACL file has them."""
    return session.engine.acl.describe()


@command("ACL GETUSER", arity=3, flags=_ADMIN, group="server", syntax="username", cost="O(N) with N rules")
def acl_getuser(session: Session, argv: Argv) -> Reply:
    """Answer a user's flags, passwords (as hashes) and rules; null when there is no such user."""
    user = session.engine.acl.users.get(_text(argv[2]))
    if user is None:
        return None
    return {
        b"flags": Members(user.flags()),
        b"passwords": list(user.passwords),
        **_describe(user.root),
        b"selectors": [_describe(selector) for selector in user.selectors],
    }


def _describe(selector: Selector) -> dict[bytes, bytes]:
    return {
        b"commands": selector.describe_commands(),
        b"keys": selector.describe_keys(),
        b"channels": selector.describe_channels(),
    }


@command(
    "ACL SETUSER", arity=-3, flags=_ADMIN, group="server", syntax="username [rule [rule ...]]", cost="O(N) with N rules"
)
def acl_setuser(session: Session, argv: Argv) -> Reply:
    """Change a user by these rules, creating it; if one rule is wrong nothing changes.

    Rules: on off nopass >password <password #hash !hash resetpass; ~pattern %R~pattern %W~pattern allkeys resetkeys;
    &pattern allchannels resetchannels; +command -command +command|sub +@category -@category allcommands nocommands;
    (rules of one more selector) clearselectors; reset. The change takes effect at once for connected clients.
    """
    session.engine.acl.set_user(_text(argv[2]), argv[3:])
    return OK


@command(
    "ACL DELUSER", arity=-3, flags=_ADMIN, group="server", syntax="username [username ...]", cost="O(N) with N clients"
)
def acl_deluser(session: Session, argv: Argv) -> Reply:
    """Delete users and close their connections; answer how many there were."""
    names = [_text(raw) for raw in argv[2:]]
    if "default" in names:
        raise ReplyError("The 'default' user cannot be removed")
    return sum(session.engine.acl.delete_user(name) for name in names)


# -- the file -------------------------------------------------------------------------------------------------


@command("ACL SAVE", arity=2, flags=_ADMIN, group="server", cost="O(N) with N users")
def acl_save(session: Session, argv: Argv) -> Reply:
    """Write all users to the aclfile."""
    session.engine.acl.save()
    return OK


@command("ACL LOAD", arity=2, flags=_ADMIN, group="server", cost="O(N) with N users")
def acl_load(session: Session, argv: Argv) -> Reply:
    """Replace all users by those of the aclfile; if a line of it is wrong nothing changes.

    Connections of users that were removed or changed are closed. The connection that sent the command gets its reply
    first.
    """
    session.engine.acl.load()
    return OK


# -- questions ------------------------------------------------------------------------------------------------


@command("ACL CAT", arity=-2, flags=_PLAIN, group="server", syntax="[category]", cost="O(N) with N commands")
def acl_cat(session: Session, argv: Argv) -> Reply:
    """Answer all categories, or the commands of one."""
    if len(argv) == 2:
        return [category.encode() for category in CATEGORIES]
    if len(argv) > 3:
        raise bad_subcommand(argv)
    category = _text(argv[2])
    if category.lower() not in CATEGORIES:
        raise ReplyError(f"Unknown category '{category}'")
    return [
        found.wire_name.encode() for found in session.engine.commands.walk() if category.lower() in found.categories
    ]


@command("ACL DRYRUN", arity=-4, flags=_ADMIN, group="server", syntax="username command [arg [arg ...]]")
def acl_dryrun(session: Session, argv: Argv) -> Reply:
    """Answer OK if the user may run the command, otherwise why not. Nothing is run."""
    user = session.engine.acl.users.get(_text(argv[2]))
    if user is None:
        raise ReplyError(f"User '{_text(argv[2])}' not found")
    called = argv[3:]
    found = session.engine.commands.find(called)
    if found is None:
        raise ReplyError(f"Command '{_text(argv[3])}' not found")
    found.check_arity(called)
    refusal = user.refusal(found, called)
    if refusal is None:
        return OK
    if refusal.reason is Reason.COMMAND:
        return f"This user has no permissions to run the '{refusal.command.wire_name}' command"
    what = "key" if refusal.reason is Reason.KEY else "channel"
    return f"This user has no permissions to access the '{_text(called[refusal.position])}' {what}"


@command("ACL GENPASS", arity=-2, flags=_PLAIN, group="server", syntax="[bits]")
def acl_genpass(session: Session, argv: Argv) -> Reply:
    """Answer a random password of 256 bits, or as many as given, in hexadecimal."""
    if len(argv) > 3:
        raise bad_subcommand(argv)
    bits = to_integer(argv[2]) if len(argv) == 3 else 256
    if not 1 <= bits <= _MAX_PASSWORD_BITS:
        raise ReplyError(
            "ACL GENPASS argument must be the number of bits for the output password, a positive number up to "
            f"{_MAX_PASSWORD_BITS}"
        )
    digits = (bits + 3) // 4
    return secrets.token_hex((digits + 1) // 2)[:digits]


@command("ACL LOG", arity=-2, flags=_ADMIN, group="server", syntax="[count | RESET]", cost="O(N) with N rows")
def acl_log(session: Session, argv: Argv) -> Reply:
    """Answer the latest refusals, newest first, at most count (default 10); RESET forgets them."""
    if len(argv) > 3:
        raise bad_subcommand(argv)
    acl, now = session.engine.acl, session.engine.clock.now
    if len(argv) == 3 and argv[2].upper() == b"RESET":
        acl.log.clear()
        return OK
    count = max(to_integer(argv[2]), 0) if len(argv) == 3 else _MAX_LOG_ROWS
    return [_row(entry, now) for entry in list(acl.log)[:count]]


def _row(entry: LogEntry, now: int) -> dict[bytes, Reply]:
    return {
        b"count": entry.count,
        b"reason": entry.reason.name.lower(),
        b"context": entry.context,
        b"object": entry.object,
        b"username": entry.user,
        b"age-seconds": (now - entry.time) / 1000,
        b"client-info": entry.client,
    }
