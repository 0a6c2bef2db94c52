"""CLUSTER, READONLY, READWRITE and ASKING, answered as by a Redis that is not part of a cluster.

A cluster client sends these first; the error tells it to use this server as a single one.
"""

from __future__ import annotations

from penstock.engine.declarations import Argv, Flag, Reply, command
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError

_ASK = Flag.STALE
_MANAGE = Flag.STALE | Flag.ADMIN
_SUBCOMMANDS: dict[str, tuple[int, Flag]] = {
    "ADDSLOTS": (-3, _MANAGE), "ADDSLOTSRANGE": (-4, _MANAGE), "BUMPEPOCH": (2, _MANAGE),
    "COUNT-FAILURE-REPORTS": (3, _MANAGE), "COUNTKEYSINSLOT": (3, _ASK), "DELSLOTS": (-3, _MANAGE),
    "DELSLOTSRANGE": (-4, _MANAGE), "FAILOVER": (-2, _MANAGE), "FLUSHSLOTS": (2, _MANAGE), "FORGET": (3, _MANAGE),
    "GETKEYSINSLOT": (4, _ASK), "HELP": (2, Flag.LOADING | Flag.STALE), "INFO": (2, _ASK), "KEYSLOT": (3, _ASK),
    "LINKS": (2, _ASK), "MEET": (-4, _MANAGE), "MYID": (2, _ASK), "NODES": (2, _ASK), "REPLICAS": (3, _MANAGE),
    "REPLICATE": (3, _MANAGE), "RESET": (-2, _MANAGE | Flag.NOSCRIPT), "SAVECONFIG": (2, _MANAGE),
    "SET-CONFIG-EPOCH": (3, _MANAGE), "SETSLOT": (-4, _MANAGE), "SHARDS": (2, _ASK), "SLAVES": (3, _MANAGE),
    "SLOTS": (2, _ASK),
}  # fmt: skip
_SESSION_COMMANDS = ("ASKING", "READONLY", "READWRITE")


def disabled(session: Session, argv: Argv) -> Reply:
    """Answer with an error: this server is not part of a cluster."""
    raise ReplyError("This instance has cluster support disabled")


for _name, (_arity, _flags) in _SUBCOMMANDS.items():
    command(f"CLUSTER {_name}", arity=_arity, flags=_flags, group="cluster")(disabled)
for _name in _SESSION_COMMANDS:
    _flags = Flag.FAST if _name == "ASKING" else Flag.FAST | Flag.LOADING | Flag.STALE
    command(_name, arity=1, flags=_flags, group="cluster", categories=["connection"])(disabled)
