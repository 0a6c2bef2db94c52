"""How `pytest -n 8` divides the tests: by file, since the tests of a file share servers, and what takes longest goes
first.

Tests wait for timers, processes and Java as long as they compute, so there are more processes than most machines have
cores.

Most tests of Spark share one session, so their files are one part. Those that start Spark in processes of their own are
parts like any other file, and the longest are parts by themselves. On a machine without an archive of Spark's classes
the first part of Spark has it made, and the others wait for it: it lets their JVMs start in half the time
(tests/support/spark/archive_training.py). So what takes long without Spark begins before the rest of Spark.

The tests are collected once: see shared_collection.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.support import shared_collection
from xdist.scheduler import LoadScopeScheduling

FIRST = (
    "tests/spark/test_run.py::test_a_new_project_runs_without_any_java_stops_whole_and_goes_on_copied_or_moved",
    "tests/spark",
    "tests/test_packaging.py",
    "tests/integration/",
    "tests/replication/test_faults.py",
    "tests/replication/test_shards.py",
    "tests/storage/test_every_crash.py",
    "tests/cli/",
    "tests/client/cluster/",
    "tests/spark/test_runs.py",
    "tests/spark/test_kill.py",
    "tests/spark/test_catalog_file.py",
    "tests/spark/test_metastore.py",
    "tests/spark/test_run.py::test_a_run_that_ends_goes_on_where_a_continuous_one_was_killed",
    "tests/spark/test_run.py::test_the_test_of_a_new_project_passes",
    "tests/spark/test_run.py",
    "tests/spark/test_cluster.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_demo.py::test_the_demo_accounts_for_every_click",
    "tests/spark/test_notebook.py",
)
"""Files, tests, and folders of files that take longest, in the order in which they begin."""


def part_of(nodeid: str) -> str:
    """The part that a test belongs to.

    >>> tests = ("spark/test_sink.py::test", "spark/test_kill.py::test", "test_docs.py::test")
    >>> [part_of(f"tests/{test}") for test in tests]
    ['tests/spark', 'tests/spark/test_kill.py', 'tests/test_docs.py']
    >>> part_of("tests/spark/test_demo.py::test_the_demo_accounts_for_every_click").rpartition("::")[2]
    'test_the_demo_accounts_for_every_click'
    """
    if nodeid in FIRST:
        return nodeid
    file = nodeid.partition("::")[0]
    return "tests/spark" if file.startswith("tests/spark/") and file not in FIRST else file


def rank_of(part: str) -> int:
    """What has a lower rank begins earlier."""
    ranks = (
        rank for rank, first in enumerate(FIRST) if part == first or (first.endswith("/") and part.startswith(first))
    )
    return next(ranks, len(FIRST))


class Parts(LoadScopeScheduling):
    """Gives out one part after the other, in the order in which they were collected.

    A process gets its next part when two tests of the one before are left, since it has to know which test comes next.
    If one of these takes long, no other process can have that part. So what comes after a long part is taken from the
    end of the order, where short ones are.
    """

    def _assign_work_unit(self, node: Any) -> None:
        waiting = self.assigned_work.get(node, {})
        if any(rank_of(part) < len(FIRST) and not all(tests.values()) for part, tests in waiting.items()):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Parts:
    config.option.loadscopereorder = False
    return Parts(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    shared_collection.begin(session)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # in one process the quick ones go first
        items.sort(key=lambda item: rank_of(part_of(item.nodeid)))
        shared_collection.end(session, items)
