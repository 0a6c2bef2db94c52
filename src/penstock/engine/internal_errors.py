"""A handler that fails with anything but a ReplyError: a bug, in the server or in a module. It ends one command only.

The server's log has its trace, and the client gets an error.
"""

from __future__ import annotations

import logging

from penstock.engine.declarations import Argv
from penstock.engine.observe.monitors import in_short
from penstock.protocol.errors import ReplyError

logger = logging.getLogger("penstock.engine")


def internal_error(argv: Argv, error: Exception) -> ReplyError:
    """Log it, and make the reply of the command that met it."""
    logger.exception("internal error in %r", in_short(argv), exc_info=error)
    return ReplyError(f"internal error: {error!r}")
