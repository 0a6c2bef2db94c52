"""What `pip install penstock` gives: both distributions are built, and installed in an environment that has nothing
else.

Nothing of the checkout is on the path of the installed programs. C is compiled without optimization, which is quick and
shows the same.
"""

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(1800)  # it installs and compiles, which takes long on a busy machine

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
        [str(word) for word in command], env=clean | environment, cwd="/", text=True, capture_output=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(python: Path, *words: object, **environment: str) -> None:
    """pip as it works in another environment."""
    run(sys.executable, "-m", "pip", "--python", python, *words, "--quiet", **environment)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment that has what pyproject.toml says a build needs, and nothing else."""
    at = tmp_path_factory.mktemp("builder")
    venv.create(at)
    python = at / "bin" / "python"
    pip(python, "install", *tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"])
    return python


@pytest.fixture(scope="module")
def source_distribution(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as `python -m build --sdist` makes it, in an environment that the builds share."""
    to = tmp_path_factory.mktemp("sdist")
    make = f"import os; os.chdir({str(ROOT)!r}); from setuptools import build_meta; build_meta.build_sdist({str(to)!r})"
    run(builder, "-c", make)
    (path,) = to.iterdir()
    return path


@pytest.fixture(scope="module")
def wheels(builder: Path, source_distribution: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheels that a source distribution becomes without and with a compiler of C.

    They are built in this order in one folder, so that Cython runs once.
    """
    folder = tmp_path_factory.mktemp("unpacked")
    run("tar", "-xf", source_distribution, "-C", folder)
    (sources,) = folder.iterdir()
    found = []
    for compiler in ({"CC": "/bin/false"}, {"CFLAGS": "-O0"}):
        to = tmp_path_factory.mktemp("wheel")
        words = ["--no-build-isolation", "--check-build-dependencies", "--no-deps", "--wheel-dir", to, sources]
        pip(builder, "wheel", *words, **compiler)
        found += to.glob("*.whl")
    plain, compiled = found
    return plain, compiled


class Environment:
    """An environment that holds what a wheel says it needs, that wheel, and nothing else."""

    def __init__(self, at: Path) -> None:
        venv.create(at)
        self.bin = at / "bin"
        self._installed: Path | None = None

    def python(self, wheel: Path) -> Path:
        """The python of the environment, with this wheel in place of the one before."""
        python = self.bin / "python"
        if wheel != self._installed:
            words = ["--no-deps", "--force-reinstall"] if self._installed is not None else []
            pip(python, "install", "--no-compile", *words, wheel)
            self._installed = wheel
        return python


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"))


def needs(metadata: str) -> list[str]:
    return sorted(line for line in metadata.splitlines() if line.startswith(("Requires-", "Provides-Extra:")))


def test_a_source_distribution_has_the_sources_of_the_twins_and_installs_without_a_compiler(
    source_distribution: Path, wheels: tuple[Path, Path], environment: Environment
) -> None:
    with tarfile.open(source_distribution) as archive:
        names = [Path(name) for name in archive.getnames()]
    assert sorted(path.stem for path in names if path.suffix == ".pyx") == TWINS
    assert not [path for path in names if path.suffix in (".c", ".so")]
    python = environment.python(wheels[0])
    assert run(python, "-c", USE).split() == []


def test_a_wheel_has_the_compiled_twins_and_nothing_that_was_generated_on_the_way(
    source_distribution: Path, wheels: tuple[Path, Path], environment: Environment
) -> None:
    with zipfile.ZipFile(wheels[1]) as archive:
        names = [Path(name) for name in archive.namelist()]
        (metadata,) = (archive.read(str(name)).decode() for name in names if name.name == "METADATA")
    assert sorted(path.name.split(".")[0] for path in names if path.suffix == ".so") == TWINS
    assert not [path for path in names if path.suffix in (".c", ".pyx", ".pxd")]
    python = environment.python(wheels[1])
    assert run(python, "-c", USE).split() == TWINS
    assert "Usage" in run(environment.bin / "penstock", "serve", "--help")
    with tarfile.open(source_distribution) as archive:
        (information,) = (name for name in archive.getnames() if name.count("/") == 1 and name.endswith("PKG-INFO"))
        file = archive.extractfile(information)
        assert file is not None and needs(file.read().decode()) == needs(metadata) != []
