"""The identity of the log of a server in a shard, in a file beside it: shard.json.

- `log`: a random id of this log, for as long as it only grows. etcd lists the in-sync members with the ids of their
  logs. A log that is replaced by a copy gets a new id before that, so a server in the middle of copying, or one whose
  disk was emptied, is not taken for the member that it was.
- `epoch`: that of the last leader that this log continues. Of two logs the one with the higher epoch has more, and with
  the same epoch the longer one.
- `shard` and `node`: a folder belongs to one node of one shard.

Owned by the loop thread.
"""

from __future__ import annotations

import json
from pathlib import Path

from penstock.engine.config import ConfigError
from penstock.storage.files import replace_file
from penstock.storage.lineage import new_id

NAME = "shard.json"


class LogIdentity:
    """See the top of this file."""

    def __init__(self, folder: Path, shard: str, node: str) -> None:
        self._path = folder / NAME
        self._owner = {"shard": shard, "node": node}
        self.log = ""
        self.epoch = 0

    def open(self) -> None:
        """Read the file, or make it; the folder is there."""
        try:
            known = json.loads(self._path.read_text())
            owner = {name: known[name] for name in self._owner}
            self.log, self.epoch = str(known["log"]), int(known["epoch"])
        except FileNotFoundError:
            self.renew()
            return
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{self._path} is damaged. Remove it: this node then joins as a new one") from None
        if owner != self._owner:
            raise ConfigError(
                f"{self._path.parent} belongs to node {owner['node']} of shard {owner['shard']}. "
                "Give each node a folder of its own (dir)"
            )

    def renew(self) -> None:
        """This log is about to become another one."""
        self.log = new_id()
        self.write()

    def continues(self, epoch: int) -> None:
        """This log is that of the leader of an epoch from now on, or its beginning."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.write()

    def write(self) -> None:
        """Write the file; OSError if the disk refuses."""
        text = json.dumps({**self._owner, "log": self.log, "epoch": self.epoch})
        replace_file(self._path, lambda file: file.write(text.encode()))
