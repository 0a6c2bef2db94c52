"""A digest of the table of commands: by it a client sees that it knows a server's commands already.

It covers what the client needs of COMMAND at the level exactly-once: every name, and whether the command writes. The
server computes it from its declarations and answers it in ONCEBEGIN; the client has the table of its own version, and
those that it has read in this process.

Rejected: the version of the server. Modules add commands, and two builds of one version may differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection


def command_digest(names: Collection[str], writes: Collection[str]) -> str:
    """Of commands by name, in upper case, with subcommands such as `CONFIG GET`; `writes` are those that write."""
    rows = sorted(f"{name} {name in writes:d}" for name in names)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:32]
