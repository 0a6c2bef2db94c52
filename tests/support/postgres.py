"""A Postgres for a test, if one is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.testing.redis import free_port

INSTALLED = all(shutil.which(program) for program in ("postgres", "initdb", "pg_ctl"))


def _other_user() -> str | None:
    """Postgres refuses to run as root."""
    if os.getuid() != 0:
        return None
    return next(
        (name for name in ("postgres", "nobody") if any(entry.pw_name == name for entry in pwd.getpwall())), None
    )


@contextmanager
def running_postgres() -> Iterator[str]:
    """The URL of a server with an empty database."""
    user, port = _other_user(), free_port()
    # Not in a folder of pytest, which is closed to other users.
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as data:
        if user is not None:
            shutil.chown(data, user)

        def run(*words: str) -> None:
            done = subprocess.run(words, user=user, cwd="/", capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

        run("initdb", "-D", data, "-U", "penstock", "-A", "trust", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        run("pg_ctl", "-D", data, "-w", "-l", f"{data}/log", "-o", options, "start")
        try:
            yield f"postgresql://penstock@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
