"""How `pytest -n 8` divides the tests and collects them; see support/processes.py and support/shared_collection.py."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.processes import FIRST

ROOT = Path(__file__).parent.parent
HOOKS = "from tests.support.processes import (pytest_collection, pytest_collection_modifyitems)\n"
TESTS = """
import os, pytest
from pathlib import Path

with Path(__file__ + ".imported").open("a") as file:
    file.write(os.environ.get("PYTEST_XDIST_WORKER", "") + " ")

@pytest.fixture(params=["b", "a"], scope="session")
def letter(request):
    return request.param

def test_order(letter): pass
def test_folder(of_folder, letter): assert of_folder == "{folder}"
class TestClass:
    def test_method(self): pass
def double(x):
    '''
    >>> double(2)
    4
    '''
    return 2 * x
"""


@pytest.mark.parametrize("part", FIRST)
def test_what_begins_first_is_there(part: str) -> None:
    file, _, test = part.partition("::")
    assert (ROOT / file).exists()
    assert not test or f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8")


def run_in(folder: Path, words: str = "-n 2") -> str:
    """What pytest says about the files of a folder."""
    words += " --dist loadfile --import-mode=importlib --doctest-modules -v"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words.split()], cwd=folder, env=clean | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_one_process_collects_and_the_others_import_what_they_run(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = checks\n")
    for folder in ("checks", "checks/one", "checks/other", "checks/other/inner"):
        (tmp_path / folder).mkdir()
        fixture = f"import pytest\n@pytest.fixture\ndef of_folder(): return '{folder}'\n"
        (tmp_path / folder / "conftest.py").write_text((HOOKS if folder == "checks" else "") + fixture)
        for name in ("test_it.py", f"test_{Path(folder).name}.py"):
            (tmp_path / folder / name).write_text(TESTS.format(folder=folder))
    run_in(tmp_path, "--collect-only")  # so that everything is compiled, which the processes share otherwise
    for path in tmp_path.rglob("*.imported"):
        path.unlink()
    said = run_in(tmp_path)
    assert "48 passed" in said, said
    ran = {file: worker for worker, file in re.findall(r"\[(gw\d)\] .*PASSED (\S+?)::", said)}
    assert set(ran.values()) == {"gw0", "gw1"}
    for file, worker in ran.items():
        assert set((tmp_path / f"{file}.imported").read_text().split()) <= {"gw0", worker}, "it was not asked for"


def test_a_file_that_cannot_be_imported_is_an_error_once(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = checks\n")
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "conftest.py").write_text(HOOKS)
    (tmp_path / "checks" / "test_broken.py").write_text("import nosuchmodule\n")
    (tmp_path / "checks" / "test_whole.py").write_text("def test_it(): pass\n")
    said = run_in(tmp_path)
    assert "1 error" in said and "No module named 'nosuchmodule'" in said, said
