"""How many clients the limit of open descriptors allows (`ulimit -n`).

Each client takes one descriptor. A server without a free one can neither open the file of a snapshot nor fork a child
with a pipe to it, so some are kept back: what the process has open already, and SPARE more for the log, snapshots,
threads and connections that are only accepted to be refused. If the limit is lower than maxclients needs, it is raised,
at most to the hard limit; if that is not enough, maxclients is lowered at start with a warning, and CONFIG SET is
refused.
"""

from __future__ import annotations

import contextlib
import logging
import resource
from pathlib import Path

from penstock.server import logs

logger = logging.getLogger("penstock.server")

SPARE = 32
"""Descriptors that are kept back for files and connections to come, as Redis keeps them."""


class TooFewDescriptors(OSError):
    """The limit of open descriptors leaves none for clients."""


def clients_that_fit(wanted: int, connected: int = 0) -> int:
    """The number of clients, at most `wanted`, that there are descriptors for, after the limit was raised for them.

    `connected` of the descriptors that are open now belong to clients.
    """
    reserve = len(list(Path("/dev/fd").iterdir())) - connected + SPARE
    return min(wanted, _raise_limit(wanted + reserve) - reserve)


def fit_at_start(wanted: int) -> int:
    """Like `clients_that_fit`; what changed is logged."""
    before = _soft_limit()
    fitting = clients_that_fit(wanted)
    now = _soft_limit()
    if fitting < 1:
        raise TooFewDescriptors(f"the limit of {now} open files leaves none for clients: increase 'ulimit -n'")
    if fitting < wanted:
        logger.warning(
            "maxclients is %d instead of %d, because the limit of open files is %d: increase 'ulimit -n' for more "
            "clients",
            fitting, wanted, now,
        )  # fmt: skip
    elif now != before:
        logger.log(
            logs.NOTICE, "Increased the limit of open files from %d to %d, for maxclients %d", before, now, wanted
        )
    return fitting


def _soft_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def _raise_limit(needed: int) -> int:
    """Raise the limit to `needed` descriptors, or as near as the hard limit permits; the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):  # a system may have a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return _soft_limit()
