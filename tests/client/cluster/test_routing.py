"""Which arguments are keys, as a real server's table and our own rules say, checked against the server's
own opinion.
"""

from __future__ import annotations

from typing import Any

import pytest
import redis

from penstock.client.cluster.errors import CrossSlotRefused, NotRoutable
from penstock.client.cluster.routing import CommandTable, encoded
from penstock.protocol.slots import key_slot
from penstock.testing.redis import RedisServer, find_redis


@pytest.fixture(scope="module")
def server(theirs: RedisServer) -> Any:
    with redis.Redis(port=theirs.port, protocol=2) as client:
        client.response_callbacks.clear()
        yield client


@pytest.fixture(scope="module")
def table(server: Any) -> CommandTable:
    return CommandTable.parse(server.execute_command("COMMAND"))


COMMANDS = [
    "GET k",
    "SET k v EX 10",
    "MGET {t}a {t}b {t}c",
    "MSET {t}a 1 {t}b 2",
    "DEL {t}a {t}b",
    "BITOP AND {t}d {t}a {t}b",
    "EVAL script 2 {t}a {t}b argument",
    "EVALSHA digest 1 k 2 3",
    "ZUNIONSTORE {t}d 2 {t}a {t}b WEIGHTS 1 2",
    "ZUNION 2 {t}a {t}b",
    "ZDIFFSTORE {t}d 1 {t}a",
    "XREAD COUNT 2 STREAMS {t}a {t}b 0 0",
    "XREADGROUP GROUP g c STREAMS k >",
    "XREADGROUP GROUP streams c BLOCK 1 STREAMS k >",
    "XREADGROUP GROUP g streams COUNT 1 NOACK streams {t}a {t}b > >",
    "SORT {t}a BY nosort GET # STORE {t}d",
    "SORT {t}a LIMIT 0 1",
    "SORT {t}a BY store LIMIT 0 1",
    "SORT {t}a GET store GET limit DESC STORE {t}d",
    "GEORADIUS {t}a 1 2 3 m STORE {t}d",
    "GEORADIUSBYMEMBER {t}a store 1 m",
    "GEORADIUSBYMEMBER {t}a storedist 1 m COUNT 2 STOREDIST {t}d",
    "MIGRATE host 1 k 0 10",
    "MIGRATE host 1 |empty| 0 10 KEYS {t}a {t}b",
    "OBJECT ENCODING k",
    "MEMORY USAGE k",
    "XGROUP CREATE k g 0",
    "XINFO STREAM k",
    "BLPOP {t}a {t}b 1",
    "LMOVE {t}a {t}b LEFT RIGHT",
    "PFMERGE {t}a {t}b",
    "RENAME {t}a {t}b",
]
SINCE_7 = ["LMPOP 2 {t}a {t}b LEFT", "BLMPOP 1 2 {t}a {t}b LEFT", "SINTERCARD 2 {t}a {t}b", "FCALL f 1 k", "SORT_RO k"]


@pytest.mark.parametrize("line", COMMANDS + (SINCE_7 if find_redis().version >= (7,) else []))
def test_keys_are_those_that_the_server_finds(line: str, server: Any, table: CommandTable) -> None:
    words = ["" if word == "|empty|" else word for word in line.split()]
    found = server.execute_command("COMMAND", "GETKEYS", *words)
    assert sorted(map(encoded, table.keys_of(words))) == sorted(found)
    route = table.route(words)
    assert route.slot == key_slot(route.keys[0])


@pytest.mark.parametrize(
    "line", ["PING", "INFO server", "CLUSTER INFO", "EVAL script 0", "OBJECT HELP", "NOSUCH k", "GET"]
)
def test_commands_without_keys_may_go_anywhere(line: str, table: CommandTable) -> None:
    assert table.route(line.split()).slot is None


def test_a_name_may_be_spelled_in_any_way(table: CommandTable) -> None:
    slot = key_slot(b"k")
    for call in (
        ("get", "k"),
        (b"GET", b"k"),
        ("Get", bytearray(b"k")),
        ("MEMORY USAGE", "k"),
        ("memory", "usage", "k"),
    ):
        assert table.route(call).slot == slot
    assert table.route(("GET", 5)).slot == key_slot(b"5")


def test_commands_that_only_read_are_known(table: CommandTable) -> None:
    assert table.route(("GET", "k")).reads and table.route(("MGET", "k")).reads
    assert not table.route(("SET", "k", "v")).reads and not table.route(("EVAL", "s", 1, "k")).reads


def test_keys_of_several_slots_are_refused_with_their_slots(table: CommandTable) -> None:
    with pytest.raises(
        CrossSlotRefused, match=r"SINTERSTORE has keys in several slots \(a in 15495, b in 3300"
    ) as error:
        table.route(("SINTERSTORE", "a", "b"))
    assert error.value.slots == {b"a": 15495, b"b": 3300}


def test_keys_that_only_a_module_knows_are_refused_by_name() -> None:
    table = CommandTable.parse([[b"mod.cmd", -2, [b"write", b"movablekeys"], 0, 0, 0]])
    with pytest.raises(NotRoutable, match=r"MOD\.CMD has keys in places that only its server knows"):
        table.route(("MOD.CMD", "x"))


def test_made_up_names_do_not_fill_the_memory() -> None:
    table = CommandTable.parse([[b"get", 2, [b"readonly"], 1, 1, 1]])
    for number in range(10_000):
        table.shape((f"X{number}", "k"))
    assert len(table._spelled) <= 4096
    assert table.shape(("gEt", "k")).single, "and known ones are found all the same"


def test_the_command_behind_a_prefix_is_routed() -> None:
    table = CommandTable.parse(
        [
            [b"set", -3, [b"write"], 1, 1, 1],
            [b"lazy", -2, [b"write", b"movablekeys"], 0, 0, 0],
            [b"once", -5, [b"write", b"movablekeys"], 0, 0, 0],
        ]
    )
    assert table.route(("LAZY", "SET", "k", "v")).keys == (b"k",)
    assert table.route(("ONCE", "me", 1, 0, "SET", "k", "v")).keys == (b"k",)
