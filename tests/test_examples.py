"""The examples are modules that work: loaded into a real server, used through a real client."""

from __future__ import annotations

import doctest
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from tests.support.raw_client import RawClient

from penstock import Server
from penstock.engine.declarations import REGISTRY
from penstock.engine.module_loader import ModuleError
from penstock.protocol.resp import pack

EXAMPLES = Path(__file__).parent.parent / "examples"
FILES = [str(EXAMPLES / "factor.py"), str(EXAMPLES / "background_smembers.py")]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    before = REGISTRY.saved()
    with Server(module=FILES, worker_threshold=1000) as server:
        yield server
    REGISTRY.restore(before)


@pytest.fixture(params=[2, 3])
def r(server: Server, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, protocol=request.param) as client:
        client.flushall()
        client.execute_command("ACL", "DELUSER", "ann")
        yield client


@pytest.fixture(scope="module")
def factor() -> Iterator[ModuleType]:
    """The module by itself."""
    before = REGISTRY.saved()
    spec = importlib.util.spec_from_file_location("factor_by_itself", FILES[0])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    REGISTRY.by_name.pop(b"FACTOR", None)
    spec.loader.exec_module(module)
    REGISTRY.restore(before)
    yield module


def done(r: redis.Redis) -> int:
    return int(r.info("locks")["worker_jobs_done"])


def test_factor_answers_the_prime_factors_from_a_thread(r: redis.Redis) -> None:
    before = done(r)
    r.set("n", 2**2 * 1_000_000_007 * 998_244_353)
    assert r.execute_command("FACTOR", "n") == [2, 2, 998_244_353, 1_000_000_007]
    assert done(r) == before + 1
    r.incr("counter")
    assert r.execute_command("FACTOR", "counter") == []
    assert r.execute_command("FACTOR", "none") is None


@pytest.mark.parametrize("text", ["0", "-7", "many", ""])
def test_factor_refuses_what_has_no_factors(r: redis.Redis, text: str) -> None:
    r.set("n", text)
    with pytest.raises(redis.ResponseError):
        r.execute_command("FACTOR", "n")


def test_what_its_docstrings_show_is_so(factor: ModuleType) -> None:
    outcome = doctest.testmod(factor)
    assert outcome.failed == 0 and outcome.attempted > 0


@given(st.integers(1, 1 << 62))
def test_the_factors_of_any_number_are_primes_that_multiply_to_it(factor: ModuleType, number: int) -> None:
    product = 1
    for prime in factor.factors(number):
        assert all(prime % small for small in range(2, min(prime, 1000)))
        product *= prime
    assert product == number


def test_background_smembers_answers_all_members(r: redis.Redis) -> None:
    before = done(r)
    sets = {"none": 0, "small": 2, "large": 5000}
    for key, size in sets.items():
        members = {b"%d" % number for number in range(size)}
        if members:
            r.sadd(key, *members)
        assert set(r.execute_command("BACKGROUND-SMEMBERS", key)) == members
    assert done(r) == before + 1, "only the large one is worth a thread"
    r.set("text", "x")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        r.execute_command("BACKGROUND-SMEMBERS", "text")


def test_it_answers_the_state_of_one_moment_however_much_is_written(server: Server, r: redis.Redis) -> None:
    """A writer adds pairs; no answer may have one half of a pair."""
    r.sadd("large", *(f"{number}:{half}" for number in range(3000) for half in "ab"))
    with RawClient(server.port) as reader, RawClient(server.port) as writer:
        for number in range(3000, 3100):
            writer.send(pack(b"SADD", b"large", b"%d:a" % number, b"%d:b" % number))
            reader.command("BACKGROUND-SMEMBERS", "large")
            reader.command("SREM", "large", f"{number - 3000}:a", f"{number - 3000}:b")
        for _ in range(100):
            members = reader.read()
            assert len(members) % 2 == 0
            assert {member[:-1] for member in members if member.endswith(b"a")} == {
                member[:-1] for member in members if member.endswith(b"b")
            }
            assert reader.read() == 2
            assert writer.read() == 2


def test_a_transaction_and_a_script_run_them_too(r: redis.Redis) -> None:
    r.set("n", 15)
    with r.pipeline() as pipe:
        pipe.execute_command("FACTOR", "n")
        pipe.execute_command("BACKGROUND-SMEMBERS", "none")
        factors, members = pipe.execute()
    assert (factors, list(members)) == ([3, 5], [])
    assert r.eval("return redis.call('FACTOR', KEYS[1])", 1, "n") == [3, 5]


def test_they_are_described_and_guarded_like_built_in_commands(server: Server, r: redis.Redis) -> None:
    with RawClient(server.port) as raw:
        assert [row[:2] for row in raw.ask("MODULE LIST")] == [[b"name", b"factor"], [b"name", b"background_smembers"]]
        assert "prime factors" in str(raw.ask("COMMAND DOCS FACTOR"))
        assert raw.ask("COMMAND LIST FILTERBY MODULE factor") == [b"factor"]
        assert raw.ask("COMMAND GETKEYS FACTOR n") == [b"n"]
    assert "module_factor" in r.info("modules")
    r.execute_command("ACL", "SETUSER", "ann", "on", "nopass", "~mine:*", "+factor")
    with redis.Redis(port=server.port, username="ann", password="x") as ann:
        assert ann.execute_command("FACTOR", "mine:n") is None
        for words in (("FACTOR", "n"), ("BACKGROUND-SMEMBERS", "mine:s")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                ann.execute_command(*words)


def test_a_server_does_not_start_without_a_module_it_is_to_load() -> None:
    with pytest.raises(ModuleError, match="cannot load the module 'no_such_module'"):
        Server(module="no_such_module").start()


def test_the_examples_import_nothing_but_the_public_names() -> None:
    for file in FILES:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
        imports = [line.split()[1] for line in lines if line.startswith(("from ", "import "))]
        assert all(not name.startswith("penstock") or name == "penstock.modules" for name in imports), file
    assert "penstock.modules" in sys.modules
