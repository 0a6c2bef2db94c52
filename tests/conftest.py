"""Fixtures. `r` runs a test twice: on ours and on a real Redis; whatever differs is a bug of ours.

The families of THREADED run a third time, on a server that does in threads whatever it can, down to a single element.

Mark a test `@pytest.mark.since("7.0")` when it uses something the real Redis at hand may be too old for; it then
runs on ours alone if that is so.
"""

from __future__ import annotations

import functools
import gc
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.utils
from hypothesis import HealthCheck, settings
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from tests.support import doctests
from tests.support.engine.lock_world import Slow, slow_commands
from tests.support.forked_program import ForkedProgram
from tests.support.processes import (  # noqa: F401
    pytest_collection,
    pytest_collection_modifyitems,
    pytest_xdist_make_scheduler,
)
from tests.support.waiting import wait_until

from penstock import Server, commands
from penstock.engine import stream_compression
from penstock.engine import stream_upkeep as streams
from penstock.engine.concurrency import lazy_passive, thread_switching
from penstock.testing.cluster import RedisCluster
from penstock.testing.redis import RedisServer, find_redis, free_port

commands.load()  # a test of an Engine alone needs them too, also when it is the only one that runs
settings.register_profile("timing decides no test", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("timing decides no test")
# redis-py reads its version from a file for every client, which takes two thirds of the time of a client and a PING.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)
gc.set_threshold(50_000, 50, 1000)  # as servers have it: an eighth of the time of the tests went into collecting


THREADED = {
    "test_bitmaps", "test_blocking_lists", "test_blocking_sorted_sets", "test_databases", "test_expiry", "test_hashes",
    "test_keys", "test_lists", "test_scripting", "test_sets", "test_sorted_sets", "test_sorting", "test_transactions",
}  # fmt: skip
"""Modules of tests about commands that may have much to do."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(doctests)  # a hook of this file would not be asked about src/


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "peer" in metafunc.fixturenames:
        since = metafunc.definition.get_closest_marker("since")
        wanted = tuple(int(part) for part in since.args[0].split(".")) if since else (0,)
        peers = ["penstock", "redis"] if find_redis().version >= wanted else ["penstock"]
        if metafunc.module.__name__.rpartition(".")[2] in THREADED:
            peers.append("penstock-threads")
        metafunc.parametrize("peer", peers, indirect=True, scope="session")


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Children must get Ctrl-C as from a terminal, even if the tests run in the background of a script."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _a_slice_is_as_long_as_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that an engine does for a millisecond at a time is done to its end, so that no test depends on the machine's
    speed.

    A test of slices makes them as short as it needs; servers in processes of their own have the real ones.
    """
    for module in (stream_compression, lazy_passive, streams):
        monkeypatch.setattr(module, "SLICE", 1 << 62)


@pytest.fixture(autouse=True)
def _no_job_is_counted_when_a_test_ends() -> Iterator[None]:
    """A job that a test leaves under way would change the settings of the interpreter for the tests after it."""
    yield
    wait_until(lambda: thread_switching._jobs == 0)


@pytest.fixture(autouse=True)
def _signals_are_handled_as_before() -> Iterator[None]:
    """A handler that a test leaves would decide what a later one finds in this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.fixture(scope="module", autouse=True)
def _what_a_file_leaves_open_fails_there() -> Iterator[None]:
    """A socket or file that was not closed complains when the garbage collector finds it: here, not in another file.

    The next collection then visits only what is made from now on, so that it costs little.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _what_a_test_may_leave_open_is_found_there(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that ignores what the collector complains of must not leave that to the end of its file, where it counts
    against another test.
    """
    yield
    if any("Unraisable" in mark.args[0] for mark in request.node.iter_markers("filterwarnings")):
        gc.collect()


@pytest.fixture
def slow() -> Iterator[Slow]:
    """Commands that are done when the test says so."""
    with slow_commands() as slow:
        yield slow


_shared: list[str] = []
"""URLs of servers that tests share."""


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_by_other_files() -> None:
    """A test must not depend on the files that ran before it in this process: neither keys nor closing clients are
    left.
    """
    for url in _shared:
        with redis.Redis.from_url(url) as client:
            client.flushall()
            until = time.monotonic() + 10
            while any("b" in row["flags"] for row in client.client_list()) and time.monotonic() < until:
                pass


@pytest.fixture(scope="session")
def ours() -> Iterator[Server]:
    """A Penstock server that all tests share."""
    with Server() as server:
        _shared.append(server.url)
        yield server
        _shared.remove(server.url)


@pytest.fixture(scope="session")
def theirs() -> Iterator[RedisServer]:
    """A real Redis that all tests share."""
    with RedisServer() as server:
        _shared.append(server.url)
        yield server
        _shared.remove(server.url)


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[RedisCluster]:
    """A real Redis Cluster that the tests of a file share; use it through `cluster`. Slow nodes are not replaced by the
    others.

    Six nodes that tell each other that they live take as much CPU time in a minute and a half as a start.
    """
    with RedisCluster(cluster_node_timeout="15000") as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: RedisCluster) -> RedisCluster:
    """A real Redis Cluster, healthy and empty, whatever the test before has done to it."""
    shared_cluster.mend()
    return shared_cluster


@pytest.fixture(scope="session")
def ours_threaded() -> Iterator[str]:
    """The URL of a Penstock server that runs every command in a thread.

    It is a process of its own, because that setting is global.
    """
    port = free_port()
    words = ["serve", "--port", str(port), "--save", "", "--worker-threshold", "1", "--loglevel", "warning"]
    process = ForkedProgram(
        [sys.executable, "-m", "tests.support.everything_long", *words], cwd=Path(__file__).parent.parent
    )
    try:
        with redis.Redis(port=port, retry=Retry(ConstantBackoff(0.05), 400)) as client:
            client.ping()
        url = f"redis://127.0.0.1:{port}/0"
        _shared.append(url)
        yield url
        _shared.remove(url)
    finally:
        process.terminate()
        assert process.wait(60) == 0


@pytest.fixture(scope="session")
def peer(request: pytest.FixtureRequest) -> str:
    """The URL of ours, of a real Redis, or of ours with threads."""
    if request.param == "penstock-threads":
        return str(request.getfixturevalue("ours_threaded"))
    return str(request.getfixturevalue("ours" if request.param == "penstock" else "theirs").url)


@pytest.fixture
def r(peer: str) -> Iterator[redis.Redis]:
    """A redis-py client of an empty server; the test runs once on ours and once on a real Redis."""
    with redis.Redis.from_url(peer, protocol=2, socket_timeout=60) as client:
        client.flushall()
        yield client


@pytest.fixture
def r3(peer: str) -> Iterator[redis.Redis]:
    """Like `r`, over RESP3."""
    with redis.Redis.from_url(peer, protocol=3, socket_timeout=60) as client:
        client.flushall()
        yield client
