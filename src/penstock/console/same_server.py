"""Whether the server at an address is the one whose history is in the file.

The replication id names a log: it survives a restart, and after a failover the new one names it as the one before. So
a server that has a log is known for certain. One without a log has a new id with every start. It is taken for the same
if its streams go on, as after a start from a snapshot: what was seen last is there, and no stream is shorter than it
was.
"""

from __future__ import annotations

from typing import Any

from penstock.console.errors import Missing, Problem, Refused
from penstock.console.history import History
from penstock.console.info import parse_info
from penstock.console.login import Login

COMPARED = 8
"""Streams, those that were seen last."""


async def recognize(login: Login, history: History, replication: Any) -> None:
    """Make the history that of the server that sent this part of INFO."""
    fields = parse_info(replication)
    feed = fields.get("master_replid", "")
    if not feed or feed == history.feed or await history.knows(feed, fields.get("master_replid2", "")):
        return
    (persistence,) = await login.find_all([("INFO", "persistence")])
    has_log = persistence is not None and parse_info(persistence).get("aof_enabled") == "1"
    await history.begin(feed, goes_on=not has_log and await _goes_on(login, history))


async def _goes_on(login: Login, history: History) -> bool:
    known = await history.last_offsets(COMPARED)
    replies = await login.call_all([("TINFO", key) for key in known])
    for reply in replies:
        if isinstance(reply, Problem) and not isinstance(reply, Missing | Refused):
            raise reply  # as while the server loads: it is too early to tell
    if all(isinstance(reply, Refused) for reply in replies):
        return True  # the user cannot tell, or there is nothing to compare
    pairs = [
        (last, reply[b"last"]) for last, reply in zip(known.values(), replies, strict=True) if isinstance(reply, dict)
    ]
    return bool(pairs) and all(now >= last for last, now in pairs)
