"""MODULE LIST: the commands that modules added. engine/module_loader.py loads them."""

from __future__ import annotations

from penstock.engine.declarations import Argv, Flag, Reply, command
from penstock.engine.session import Session


@command("MODULE LIST", arity=2, flags=Flag.ADMIN | Flag.NOSCRIPT, group="server", cost="O(N) with N modules")
def module_list(session: Session, argv: Argv) -> Reply:
    """Answer the name, the version, the path and the commands of each module; `args` is always empty."""
    return [
        {
            b"name": module.name.encode(),
            b"ver": module.version,
            b"path": module.path.encode(),
            b"args": [],
            b"commands": [name.encode() for name in module.commands],
        }
        for module in session.engine.commands.modules
    ]
