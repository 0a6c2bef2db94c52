"""A server whose syncs of the log never end; the first creates `syncing` in its folder.

python -m tests.support.storage.slow_sync serve ...
"""

from __future__ import annotations

import os
import threading
from pathlib import Path


def sync_for_ever(descriptor: int) -> None:
    log = Path(f"/proc/self/fd/{descriptor}").readlink()
    (log.parent.parent / "syncing").touch()
    threading.Event().wait()


if __name__ == "__main__":
    os.fdatasync = sync_for_ever  # before anything of the server is imported, which keeps the function
    from penstock.cli.main import app

    app()
