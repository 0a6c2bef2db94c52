"""What `pip install penstock` gives: both distributions are built, and installed in environments that have nothing
else.

Nothing of the checkout is on the path of the installed programs. C is compiled without optimization, which is quick and
shows the same.
"""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TWINS = sorted(path.stem for path in (ROOT / "src").rglob("*.pyx"))

# Starts a server, writes and reads through the client, and says which modules are compiled.
USE = """
import pathlib, penstock
with penstock.Server() as server, penstock.Client.from_url(server.url) as client:
    client.set("k", "v")
    assert client.get("k") == b"v"
    assert client.twrite("s", "tag", "entry") == 1
print(*sorted(path.name.split(".")[0] for path in pathlib.Path(penstock.__file__).parent.rglob("*.so")))
"""


def run(*command: object, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PENSTOCK"))}
    done = subprocess.run(
        [str(word) for word in command], env=clean | environment, cwd="/", text=True, capture_output=True, timeout=380
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(distribution: Path, at: Path, **environment: str) -> Path:
    """The python of a new environment that holds the distribution and what it needs."""
    venv.create(at)
    python = at / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", distribution, **environment)
    return python


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", to, ROOT)
    (path,) = to.iterdir()
    return path


def test_a_source_distribution_has_the_sources_of_the_twins_and_installs_without_a_compiler(
    source_distribution: Path, tmp_path: Path
) -> None:
    with tarfile.open(source_distribution) as archive:
        names = [Path(name) for name in archive.getnames()]
    assert sorted(path.stem for path in names if path.suffix == ".pyx") == TWINS
    assert not [path for path in names if path.suffix in (".c", ".so")]
    python = installed(source_distribution, tmp_path / "environment", CC="/bin/false")
    assert run(python, "-c", USE).split() == []


def test_a_wheel_has_the_compiled_twins_and_nothing_that_was_generated_on_the_way(
    source_distribution: Path, tmp_path: Path
) -> None:
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, source_distribution),
        CFLAGS="-O0",
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name) for name in archive.namelist()]
    assert sorted(path.name.split(".")[0] for path in names if path.suffix == ".so") == TWINS
    assert not [path for path in names if path.suffix in (".c", ".pyx", ".pxd")]
    python = installed(wheel, tmp_path / "environment")
    assert run(python, "-c", USE).split() == TWINS
    assert "Usage" in run(tmp_path / "environment" / "bin" / "penstock", "serve", "--help")
