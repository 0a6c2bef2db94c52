"""BACKGROUND-SMEMBERS: a command that reads much and computes little.

    penstock serve --module examples/background_smembers.py
    redis-cli BACKGROUND-SMEMBERS visitors

The set is locked for reading while a thread goes through it: others may read it, and who wants to change it waits until
the thread is done. So the answer is the set as it was at one moment, and nobody else noticed that it was large.
"""

from __future__ import annotations

from itertools import islice

from penstock.modules import Access, Argv, Flag, Raw, Reply, Session, Set, command, encode, key

STEP = 1000
"""Members at a time: one call into C for all of them would keep the interpreter from everybody else meanwhile."""


@command(
    "BACKGROUND-SMEMBERS", arity=2, flags=Flag.READONLY, keys=key(1, Access.READ), group="module", syntax="key",
    cost="O(N) with N members, in a thread if they are many", categories=["set"],
)  # fmt: skip
def background_smembers(session: Session, argv: Argv) -> Reply:
    """Answer all members of the set at key."""
    found = session.db.find(argv[1], Set)
    if found is None:
        return set()
    protocol = session.protocol  # a thread has no business with the session
    return session.aside(len(found), lambda: encoded(found, protocol))


def encoded(found: Set, protocol: int) -> Raw:
    """The members as they travel: a set, or an array in the older protocol."""
    members = iter(found)
    pieces = [b"%b%d\r\n" % (b"~" if protocol == 3 else b"*", len(found))]
    while some := list(islice(members, STEP)):
        pieces.append(b"".join([encode(member) for member in some]))
    return Raw(b"".join(pieces))
