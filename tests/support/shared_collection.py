"""With `pytest -n 8` one process collects the tests, and each of the others imports the files whose tests it runs.

pytest-xdist has every process collect all tests, which takes eight seconds of CPU time in each: they import four
hundred files and make ten thousand tests of them. It compares what they found, and then names tests by their place in
that list. So the first process writes the list to a file, and the others have a list with the same names, whose tests
are made when they are asked for.

That is for `pytest -n 8` without a choice of tests. If a file cannot be imported, all processes collect, and say so.

Where nothing is compiled yet, pytest's own compiler takes longer than everything else that goes before the first test:
all processes share that work.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, overload

import pytest
from _pytest.assertion.rewrite import PYC_TAIL
from _pytest.pathlib import ImportMode, import_path
from tests.support.waiting import wait_until

PATIENCE = 300
"""Seconds after which a process collects by itself, because the first one must be gone."""
NAMES = pytest.StashKey[list[str]]()
"""The names of all tests, in a session that is to collect none."""


class UnimportedTests(Sequence[Any]):
    """What `session.items` would be. A file is imported when one of its tests is asked for; the names are known."""

    def __init__(self, session: pytest.Session, roots: list[Any], names: list[str]) -> None:
        self._session, self._roots, self._names = session, roots, names
        self._made: dict[str, pytest.Item] = {}
        self._children: dict[pytest.Directory, list[Any]] = {}
        for root in roots:  # pytest forgets a conftest.py whose folder is not collected before the collection ends
            self._within(root)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Any]:
        """The names alone, which is what the processes compare."""
        return (SimpleNamespace(nodeid=name) for name in self._names)

    @overload
    def __getitem__(self, index: int) -> pytest.Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[pytest.Item]: ...

    def __getitem__(self, index: int | slice) -> pytest.Item | list[pytest.Item]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        name = self._names[index]
        if name not in self._made:
            self._make(self._session.path / name.partition("::")[0])
        return self._made[name]

    def _make(self, file: Path) -> None:
        """Make all tests of a file, as pytest would, below the folders that it would put them in."""
        folder = next(root for root in self._roots if file.is_relative_to(root.path))
        while folder.path != file.parent:
            folder = next(each for each in self._within(folder) if file.is_relative_to(each.path))
        collectors = [each for each in self._within(folder) if each.path == file]
        items = [item for collector in collectors for item in self._session.genitems(collector)]
        config = self._session.config
        config.hook.pytest_collection_modifyitems(session=self._session, config=config, items=items)
        self._made.update((item.nodeid, item) for item in items)

    def _within(self, folder: pytest.Directory) -> list[Any]:
        """The files and folders in a folder. Its conftest.py is loaded."""
        if folder not in self._children:
            self._children[folder] = folder.ihook.pytest_make_collect_report(collector=folder).result
        return self._children[folder]


def begin(session: pytest.Session) -> None:
    """Let this process of `pytest -n` collect, or wait for the one that does."""
    config = session.config
    root = config.rootpath
    everything = [root / path for path in config.getini("testpaths")]
    chosen = config.option.keyword or config.option.markexpr or config.option.deselect
    chosen = chosen or getattr(config.option, "lf", False)  # of a plugin that can be turned off
    if not hasattr(config, "workerinput") or [root / path for path in config.args] != everything or chosen:
        return
    number, count = int(config.workerinput["workerid"][2:]), config.workerinput["workercount"]
    if number == 0:
        return
    _compile(everything[0], root, number, count)
    with contextlib.suppress(AssertionError):
        wait_until(_list(config).exists, PATIENCE)
        if names := json.loads(_list(config).read_text()):
            session.stash[NAMES] = names
            session.perform_collect = partial(session.perform_collect, genitems=False)  # type: ignore[method-assign]


def end(session: pytest.Session, items: list[Any]) -> None:
    """Say what this process collected, or take what the first one did in the place of what pytest is to collect."""
    config = session.config
    if NAMES in session.stash:
        names = session.stash[NAMES]
        del session.stash[NAMES]
        session.items = UnimportedTests(session, list(items), names)  # type: ignore[assignment]
        session.testscollected = len(names)
    elif config.workerinput["workerid"] == "gw0" and not _list(config).exists():
        new = _list(config).with_suffix(".new")
        new.write_text(json.dumps([] if session.testsfailed else [item.nodeid for item in items]))
        new.replace(_list(config))


def _list(config: pytest.Config) -> Path:
    """The file, in the folder of all processes."""
    return Path(config.option.basetemp).parent / "collected.json"


def _compile(folder: Path, root: Path, number: int, count: int) -> None:
    """Import a part of the files, if they are not compiled; the first process then comes to compiled ones.

    One that cannot be imported is left to the collection, which says so.
    """
    files = sorted(folder.rglob("test_*.py"))
    for file in files[len(files) * number // count : len(files) * (number + 1) // count]:
        if not (file.parent / "__pycache__" / f"{file.stem}{PYC_TAIL}").exists():
            with contextlib.suppress(Exception):
                import_path(file, mode=ImportMode.importlib, root=root, consider_namespace_packages=False)
