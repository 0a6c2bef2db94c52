"""Builds a wheel with each Python that is named, and uses it in an empty environment: `make wheels`.

    python -m tests.support.wheels python3.12 python3.13

Everything is in a temporary folder. What pyproject.toml says to cibuildwheel does the same for a release, in containers
of its own; this needs nothing but the interpreters.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
USE = """
import pathlib, sys, penstock
with penstock.Server() as server, penstock.Client.from_url(server.url) as client:
    client.set("k", "v")
    assert client.get("k") == b"v"
    assert client.twrite("s", "tag", "entry") == 1
    (message,) = client.tread("s", 1, 10)
    assert message.entry == b"entry", message
compiled = len(list(pathlib.Path(penstock.__file__).parent.rglob("*.so")))
print(f"Python {sys.version.split()[0]}: SET, GET, TWRITE and TREAD work, {compiled} modules are compiled")
"""


def run(*command: object) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PENSTOCK"))}
    subprocess.run([str(word) for word in command], env=clean, cwd="/", check=True)


def try_wheel(python: str, sources: Path, folder: Path) -> None:
    for name in ("builds", "uses"):
        run(python, "-m", "venv", folder / name)
    run(folder / "builds" / "bin" / "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "wheel", sources)
    (wheel,) = (folder / "wheel").iterdir()
    sys.stdout.write(f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB\n")
    sys.stdout.flush()
    run(folder / "uses" / "bin" / "pip", "install", "--quiet", wheel)
    run(folder / "uses" / "bin" / "penstock", "--version")
    run(folder / "uses" / "bin" / "python", "-c", USE)


def main(pythons: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-wheels-") as temporary:
        folder = Path(temporary)
        run("git", "clone", "--quiet", ROOT, folder / "sources")  # what is committed, and no file that was built here
        for number, python in enumerate(pythons):
            try_wheel(python, folder / "sources", folder / str(number))


if __name__ == "__main__":
    main(sys.argv[1:])
