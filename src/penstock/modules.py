"""Everything a module needs: `from penstock.modules import command, ...`. The guide is docs/modules.md.

A module is a Python file that declares commands. `penstock serve --module FILE.py` (or a dotted name) loads it.

    from penstock.modules import Access, Argv, Flag, Reply, Session, command, key

    @command(
        "HELLO.KEY", arity=2, flags=Flag.READONLY | Flag.FAST, keys=key(1, Access.READ), group="module", syntax="key"
    )
    def hello_key(session: Session, argv: Argv) -> Reply:
        '''Greet what is at a key.'''
        return b"hello " + (session.db.find_string(argv[1]) or b"nobody")

This file has no code of its own. The names below are the engine's interface for modules.
"""

from __future__ import annotations

from penstock.engine.arguments import to_float, to_integer
from penstock.engine.declarations import (
    Access,
    Argv,
    Flag,
    KeySpec,
    Reply,
    command,
    counted_keys,
    found_keys,
    key,
    keys,
)
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, WrongType, no_such_key, syntax_error
from penstock.protocol.resp import OK, Pairs, Raw, Status, Verbatim, encode
from penstock.types.hash import Hash
from penstock.types.list import List
from penstock.types.packing import CorruptValue
from penstock.types.registry import value_type
from penstock.types.set import Set
from penstock.types.stream.stream import Stream
from penstock.types.zset import SortedSet

ALWAYS = 1 << 62
"""`work` that is always worth a thread, however high `worker-threshold` is."""

__all__ = [
    "ALWAYS",
    "OK",
    "Access",
    "Argv",
    "CorruptValue",
    "Flag",
    "Hash",
    "KeySpec",
    "List",
    "Pairs",
    "Raw",
    "Reply",
    "ReplyError",
    "Session",
    "Set",
    "SortedSet",
    "Status",
    "Stream",
    "Verbatim",
    "WrongType",
    "command",
    "counted_keys",
    "encode",
    "found_keys",
    "key",
    "keys",
    "no_such_key",
    "syntax_error",
    "to_float",
    "to_integer",
    "value_type",
]
