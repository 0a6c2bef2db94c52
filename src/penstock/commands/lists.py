"""Lists."""

from __future__ import annotations

from penstock.engine.session import Session
from penstock.engine.spec import Access, Argv, Flag, Reply, command, key
from penstock.types.list import List


@command(
    "LPUSH",
    arity=-3,
    flags=Flag.WRITE | Flag.DENYOOM | Flag.FAST,
    keys=key(1, Access.UPDATE),
    group="list",
    syntax="key element [element ...]",
)
def lpush(session: Session, argv: Argv) -> Reply:
    """Put elements at the head of the list at key, creating it."""
    db = session.db
    name = argv[1]
    items = db.obtain(name, List)
    items.extendleft(argv[2:])
    db.changed(name)
    return len(items)
