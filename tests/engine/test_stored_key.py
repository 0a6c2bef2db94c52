"""The key object that a dict holds: found by both twins, and shared by all that the server keeps about a key."""

from __future__ import annotations

import sys

import pytest
from tests.support.twins import is_compilation_expected, pure_twin

from penstock.engine.dispatch import Engine
from penstock.engine.keyspace import stored_key
from penstock.engine.session import Session

TWINS = {"chosen": stored_key.stored_key, "pure": pure_twin(stored_key).stored_key}


def another(key: bytes) -> bytes:
    """An equal object."""
    return bytes(bytearray(key))


@pytest.mark.parametrize("twin", TWINS)
def test_the_key_of_the_dict_is_found(twin: str) -> None:
    keys = [b"key %d" % number for number in range(1000)]
    table = dict.fromkeys(keys, 0)
    for key in keys:
        assert another(key) is not key
        assert TWINS[twin](table, another(key)) is key
        assert TWINS[twin](table, key) is key
    absent = b"absent"
    assert TWINS[twin](table, absent) is absent
    assert TWINS[twin]({}, absent) is absent
    assert sys.getrefcount(keys[0]) == sys.getrefcount(keys[1]), "no reference stays behind"


def test_the_compiled_twin_is_there_if_it_can_be() -> None:
    assert stored_key.COMPILED or not is_compilation_expected()


@pytest.mark.parametrize(
    "commands",
    [
        ["SET k v", "EXPIRE k 100"],
        ["SET k v", "SET k w EX 100"],
        ["SET k v EX 100", "SET k v", "PEXPIREAT k 99999999999999"],
        ["SET k v EX 100", "GETEX k EX 50"],
        ["RPUSH l v", "EXPIRE l 100", "RENAME l k"],
        ["SET j v EX 100", "COPY j k"],
        ["SET k v", "SET j w EX 100", "COPY j k REPLACE"],
    ],
)
def test_an_expiry_time_is_kept_under_the_key_object_of_the_keyspace(commands: list[str]) -> None:
    session = Session(engine := Engine())
    session.db = database = engine.keyspace[0]
    for line in commands:
        engine.execute(session, line.encode().split())
    (stored,) = [key for key in database.data if key == b"k"]
    assert [key for key in database.expires if key is stored] == [stored]
    database.check()
