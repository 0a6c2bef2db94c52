"""A type is its class and its commands: all that works on any key works on it without another line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import Server
from penstock.engine.declarations import REGISTRY
from penstock.engine.module_loader import ModuleError, load
from penstock.types import codec, registry
from penstock.types.hash import Hash

TALLY = '''
from penstock.modules import Access, CorruptValue, Flag, command, key, value_type


@value_type("tally", tag=200)
class Tally:
    """A number that only grows."""

    def __init__(self, count=0):
        self.count = count

    def dump(self):
        return b"%d" % self.count

    @classmethod
    def load(cls, data):
        if not data.isdigit():
            raise CorruptValue("a tally that is no number")
        return cls(int(data))

    def size(self):
        return 1000 + self.count.__sizeof__()

    def check(self):
        assert self.count >= 0


@command("TALLY.ADD", arity=2, flags=Flag.WRITE | Flag.FAST, keys=key(1, Access.UPDATE), group="tally", syntax="key")
def add(session, argv):
    """Count one more and answer how many that makes."""
    tally = session.db.obtain(argv[1], Tally)
    tally.count += 1
    session.db.changed(argv[1])
    return tally.count


@command("TALLY.SHOW", arity=2, flags=Flag.READONLY | Flag.FAST, keys=key(1, Access.READ), group="tally", syntax="key")
def show(session, argv):
    """Answer how many there are."""
    tally = session.db.find(argv[1], Tally)
    return tally.count if tally is not None else 0
'''


@pytest.fixture(autouse=True)
def _own_commands_and_types() -> Iterator[None]:
    commands, types = REGISTRY.saved(), set(registry.DECLARED)
    yield
    REGISTRY.restore(commands)
    for kind in set(registry.DECLARED) - types:
        registry.withdraw(kind)


@pytest.fixture
def module(tmp_path: Path) -> str:
    path = tmp_path / "tally.py"
    path.write_text(TALLY)
    return str(path)


@pytest.fixture
def client(module: str, tmp_path: Path) -> Iterator[Any]:
    with Server(dir=tmp_path, appendonly=True, module=[module], enable_debug_command="yes") as server:
        connection = redis.Redis(port=server.port)
        for _ in range(3):
            connection.execute_command("TALLY.ADD", "t")
        connection.set("s", "string")
        yield connection
        connection.close()


def test_type_and_scan_know_its_name(client: Any) -> None:
    assert client.type("t") == b"tally"
    assert list(client.scan_iter(_type="tally")) == [b"t"]
    assert list(client.scan_iter(_type="string")) == [b"s"]


def test_other_commands_refuse_it(client: Any) -> None:
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.get("t")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.execute_command("TALLY.ADD", "s")


def test_it_is_dumped_restored_and_copied(client: Any) -> None:
    client.restore("again", 0, client.dump("t"))
    assert client.copy("t", "copied")
    client.execute_command("TALLY.ADD", "copied")
    assert [client.execute_command("TALLY.SHOW", key) for key in ("t", "again", "copied")] == [3, 3, 4]


def test_it_survives_a_reload_and_a_replay_of_the_log(client: Any) -> None:
    before = client.execute_command("DEBUG", "DIGEST-VALUE", "t")
    for command in (["RELOAD"], ["LOADAOF"]):
        client.execute_command("DEBUG", *command)
        assert client.execute_command("TALLY.SHOW", "t") == 3
    assert client.execute_command("DEBUG", "DIGEST-VALUE", "t") == before
    client.execute_command("TALLY.ADD", "t")
    assert client.execute_command("DEBUG", "DIGEST-VALUE", "t") != before


def test_peek_shows_its_dump_cut(client: Any) -> None:
    assert client.execute_command("PEEK", "t", 0) == [b"0", [[None, b"3", 1]]]
    for _ in range(9):
        client.execute_command("TALLY.ADD", "t")
    assert client.execute_command("PEEK", "t", 0, "BYTES", 1) == [b"0", [[None, b"1", 2]]]


def test_its_memory_is_what_it_says(client: Any) -> None:
    assert client.memory_usage("t") > 1000


def test_object_encoding_is_its_name(client: Any) -> None:
    assert client.object("encoding", "t") == b"tally"


@pytest.mark.parametrize(("name", "tag"), [("hash", 201), ("string", 201), ("other", 3), ("other", 0), ("other", 256)])
def test_names_and_tags_are_unique(name: str, tag: int) -> None:
    before = dict(registry.DECLARED)
    with pytest.raises(ValueError):
        registry.value_type(name, tag=tag)(Hash)
    assert before == registry.DECLARED


def test_a_module_that_fails_leaves_no_type_behind(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(TALLY + "\n1 / 0\n")
    for _ in range(2):
        with pytest.raises(ModuleError, match="ZeroDivisionError"):
            load(str(path))
    assert 200 not in codec.TYPES
