"""What the declarations of Penstock's commands say that a client must know before it has asked a server.

Written by `python -m tests.support.client.declared_table`; tests/client/test_declared.py compares it with the
declarations. The client does not import them: it does not need the server (docs/design/0001-layers.md). Commands that
only Redis and Valkey have are listed where this table is used.
"""

from __future__ import annotations

CONTAINERS = frozenset(
    {
        "ACL",
        "CLIENT",
        "CLUSTER",
        "COMMAND",
        "CONFIG",
        "DEBUG",
        "FUNCTION",
        "LATENCY",
        "MEMORY",
        "MODULE",
        "OBJECT",
        "PUBSUB",
        "SCRIPT",
        "SLOWLOG",
        "TGROUP",
        "TSCHEMA",
        "XINFO",
    }
)
"""Commands whose second word names a subcommand."""

BLOCKING = frozenset(
    {
        "BLMOVE",
        "BLMPOP",
        "BLPOP",
        "BRPOP",
        "BRPOPLPUSH",
        "BZMPOP",
        "BZPOPMAX",
        "BZPOPMIN",
        "TREAD",
        "XREAD",
    }
)
"""Commands that may wait on the server."""

KEYED_SUBCOMMANDS: dict[str, tuple[int, int, int]] = {
    "DEBUG DIGEST-VALUE": (2, -1, 1),
    "DEBUG LOCK": (4, -1, 1),
    "DEBUG OBJECT": (2, 2, 1),
    "MEMORY USAGE": (2, 2, 1),
    "OBJECT ENCODING": (2, 2, 1),
    "OBJECT FREQ": (2, 2, 1),
    "OBJECT IDLETIME": (2, 2, 1),
    "OBJECT REFCOUNT": (2, 2, 1),
    "TGROUP DEL": (2, 2, 1),
    "TGROUP LIST": (2, 2, 1),
    "TGROUP PENDING": (2, 2, 1),
    "TGROUP SET": (2, 2, 1),
    "TSCHEMA DEL": (2, 2, 1),
    "TSCHEMA GET": (2, 2, 1),
    "TSCHEMA SET": (2, 2, 1),
    "TSCHEMA VERSIONS": (2, 2, 1),
    "XINFO STREAM": (2, 2, 1),
}
"""Subcommands with keys: the place of the first and of the last key (negative: from the end), and the step."""

COUNTED_KEYS: dict[str, tuple[int, int | None]] = {
    "BLMPOP": (2, None),
    "BZMPOP": (2, None),
    "EVAL": (2, None),
    "EVALSHA": (2, None),
    "EVALSHA_RO": (2, None),
    "EVAL_RO": (2, None),
    "FCALL": (2, None),
    "FCALL_RO": (2, None),
    "LMPOP": (1, None),
    "SINTERCARD": (1, None),
    "ZDIFF": (1, None),
    "ZDIFFSTORE": (2, 1),
    "ZINTER": (1, None),
    "ZINTERCARD": (1, None),
    "ZINTERSTORE": (2, 1),
    "ZMPOP": (1, None),
    "ZUNION": (1, None),
    "ZUNIONSTORE": (2, 1),
}
"""Commands with `numkeys key [key ...]`: the place of numkeys, and that of one more key."""

PREFIXES: dict[str, int] = {
    "LAZY": 1,
    "ONCE": 4,
}
"""Commands that run another command: the place of its name."""

FOUND_KEYS = frozenset(
    {
        "SORT",
        "TREAD",
        "XREAD",
    }
)
"""Commands whose keys only their options tell."""

UNFLAGGED_WRITES = frozenset(
    {
        "EVAL",
        "EVALSHA",
        "FCALL",
        "PUBLISH",
        "SPUBLISH",
    }
)
"""Commands that run what they are given, or reach others: writes for ONCE, although COMMAND does not say so."""
