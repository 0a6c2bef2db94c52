"""COMMAND, on ours and on a real Redis."""

from __future__ import annotations

import re
import socket

import pytest
import redis
from tests.support.raw_client import RawClient
from tests.support.replies import error_of, raw

from penstock import Server
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.resp import encode
from penstock.testing.redis import RedisServer, find_redis


def test_redis_py_reads_command(r: redis.Redis) -> None:
    commands = r.command()
    assert commands["get"]["arity"] == 2
    assert commands["get"]["first_key_pos"] == 1
    assert "readonly" in commands["get"]["flags"]
    assert len(commands) == r.command_count()


@pytest.mark.since("7.0")
def test_info_describes_the_named_commands(r: redis.Redis) -> None:
    get, nothing, container, sub = raw(r, "COMMAND", "INFO", "GeT", "nosuch", "config", "config|get")
    assert nothing is None
    assert get[:2] == [b"get", 2]
    assert set(get[2]) == {b"readonly", b"fast"}
    assert get[3:6] == [1, 1, 1]
    assert get[6] == [b"@read", b"@string", b"@fast"]
    assert len(get) == 10
    assert container[0] == b"config"
    assert b"config|get" in [child[0] for child in container[9]]
    assert sub[0] == b"config|get"


UNKNOWN = [[b"CLIENT", b"KILL", b"TYPE", b"\xff\0"], [b"HELLO", b"3", b"\xff\0"]]
if find_redis().version >= (7,):  # an older one words these otherwise
    UNKNOWN += [
        [b"NO\xff\0", b"\xff\0x", b"\xc3\xa9" * 100, b"y"], [b"OBJECT", b"\xffA\0"], [b"EXPIRE", b"a", b"1", b"x\r\n"],
        [b"PUBSUB", b"CHANNELS\xff\0"],
    ]  # fmt: skip


def test_what_is_unknown_is_shown_in_the_bytes_it_came_in_up_to_a_nul(ours: Server, theirs: RedisServer) -> None:
    for line in UNKNOWN:
        replies = []
        for server in (ours, theirs):
            with RawClient(server.port) as client:
                client.command(*line)
                replies.append(str(client.read()))
        assert replies[0] == replies[1]


def test_help_is_lines_of_status(ours: Server, theirs: RedisServer) -> None:
    for server in (ours, theirs):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"OBJECT HELP\r\n")
            assert re.match(rb"\*\d+\r\n\+OBJECT <subcommand> ", connection.recv(1 << 16))


@pytest.mark.since("7.0")
def test_key_specs_are_maps_in_resp3(r3: redis.Redis) -> None:
    [get] = raw(r3, "COMMAND", "INFO", "get")
    [spec] = get[8]
    assert set(spec.pop(b"flags")) == {b"RO", b"access"}
    assert spec == {
        b"begin_search": {b"type": b"index", b"spec": {b"index": 1}},
        b"find_keys": {b"type": b"range", b"spec": {b"lastkey": 0, b"keystep": 1, b"limit": 0}},
    }


def test_flags_are_a_set_in_resp3() -> None:
    session = Session(Engine())
    reply = encode(session.engine.execute(session, [b"COMMAND", b"INFO", b"get"]), 3)
    assert reply.startswith(b"*1\r\n*10\r\n$3\r\nget\r\n:2\r\n~2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n~3\r\n")


@pytest.mark.since("7.0")
def test_list_filters_by_category_and_pattern(r: redis.Redis) -> None:
    bitmaps = {b"bitfield", b"bitfield_ro", b"bitcount", b"bitop", b"bitpos", b"getbit", b"setbit"}
    assert set(raw(r, "COMMAND", "LIST", "FILTERBY", "ACLCAT", "bitmap")) == bitmaps
    assert set(raw(r, "COMMAND", "LIST", "FILTERBY", "PATTERN", "CONFIG*")) == {
        b"config", b"config|get", b"config|set", b"config|rewrite", b"config|resetstat", b"config|help",
    }  # fmt: skip
    assert raw(r, "COMMAND", "LIST", "FILTERBY", "MODULE", "nope") == []
    names = raw(r, "COMMAND", "LIST")
    assert b"config|get" in names
    assert len([name for name in names if b"|" not in name]) == r.command_count()
    assert error_of(r, "COMMAND LIST", "FILTERBY", "COLOUR", "red") == "syntax error"


@pytest.mark.since("7.0")
def test_docs_tell_what_a_command_is_for(r3: redis.Redis) -> None:
    docs = raw(r3, "COMMAND", "DOCS", "get", "nosuch", "config")
    assert docs.keys() == {b"get", b"config"}
    assert docs[b"get"][b"group"] == b"string"
    assert docs[b"get"][b"complexity"] == b"O(1)"
    assert b"config|set" in docs[b"config"][b"subcommands"]


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("GET a", "a"),
        ("MSET a 1 b 2", "a b"),
        ("BITOP AND d a b", "d a b"),
        ("EVAL script 2 a b c", "a b"),
        ("ZUNIONSTORE d 2 a b WEIGHTS 1 2", "d a b"),
        ("SORT a STORE b", "a b"),
    ],
)
@pytest.mark.since("7.0")
def test_getkeys_finds_the_keys(r: redis.Redis, line: str, keys: str) -> None:
    assert raw(r, "COMMAND", "GETKEYS", *line.split()) == keys.encode().split()


@pytest.mark.since("7.0")
def test_getkeysandflags_tells_what_happens_to_a_key(r: redis.Redis) -> None:
    rows = raw(r, "COMMAND", "GETKEYSANDFLAGS", "BITOP", "AND", "d", "a")
    assert rows == [[b"d", [b"OW", b"update"]], [b"a", [b"RO", b"access"]]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("LMOVE a b LEFT LEFT", ["RW access delete", "RW insert"]), ("LPUSH a 1", ["RW insert"]), ("LLEN a", ["RO"]),
        ("SET a 1", ["OW update"]), ("SET a 1 GET", ["RW access update"]), ("DEL a b", ["RM delete", "RM delete"]),
        ("MSETNX a 1 b 2", ["OW insert", "OW insert"]), ("HSET a b c", ["RW update"]), ("EXISTS a", ["RO"]),
        ("ZUNIONSTORE d 1 a", ["OW update", "RO access"]), ("BLMPOP 0 1 a LEFT", ["RW access delete"]),
        ("RENAMENX a b", ["RW access delete", "OW insert"]),
    ],
)  # fmt: skip
@pytest.mark.since("7.0")
def test_getkeysandflags_says_what_redis_says(r: redis.Redis, line: str, words: list[str]) -> None:
    rows = raw(r, "COMMAND", "GETKEYSANDFLAGS", *line.split())
    assert [b" ".join(flags).decode() for _, flags in rows] == words


NOT_AS_REDIS = {b"sort", b"sort_ro", b"spublish", b"ssubscribe", b"sunsubscribe"}
"""Patterns and channels are no keys to us."""


if find_redis().version >= (7,):  # an older one does not tell the flags

    def test_the_flags_of_every_key_are_those_of_redis(ours: Server, theirs: RedisServer) -> None:
        tables = []
        for server in (ours, theirs):
            with redis.Redis(port=server.port, protocol=3) as client:
                rows = raw(client, "COMMAND")
            table = {row[0]: row for row in rows} | {sub[0]: sub for row in rows for sub in row[9]}
            tables.append({name: [set(spec[b"flags"]) for spec in row[8]] for name, row in table.items()})
        mine, redis_has = tables
        both = (mine.keys() & redis_has.keys()) - NOT_AS_REDIS
        assert len(both) > 150
        assert {name: mine[name] for name in both} == {name: redis_has[name] for name in both}


def test_getkeys_refuses_what_has_no_keys(r: redis.Redis) -> None:
    assert error_of(r, "COMMAND GETKEYS", "PING", "x") == "The command has no key arguments"
    assert error_of(r, "COMMAND GETKEYS", "NOSUCH", "x") == "Invalid command specified"
    assert error_of(r, "COMMAND GETKEYS", "GET", "a", "b") == "Invalid number of arguments specified for command"


# -- every declaration against Redis's own ------------------------------------------------------------------------

DECLARED_OTHERWISE = {
    "debug": "has declared subcommands here; Redis reads its first argument itself",
    "spublish": "a shard channel is not a key: nothing is locked or logged for it",
    "ssubscribe": "likewise",
    "sunsubscribe": "likewise",
}
NOT_OURS = {b"no_async_loading", b"no_mandatory_keys", b"skip_monitor", b"may_replicate", b"asking"}
"""Flags for what we do not have: modules, replicas, loading beside the old data."""

Declaration = tuple[int, set[bytes], list[int], set[bytes]]


def _declarations(url: str) -> dict[str, Declaration]:
    """Arity, flags, key range and categories of every command and subcommand."""
    found: dict[str, Declaration] = {}
    with redis.Redis.from_url(url, protocol=2) as client:
        rows = raw(client, "COMMAND")
    while rows:
        row = rows.pop()
        found[row[0].decode()] = (row[1], set(row[2]) - NOT_OURS, row[3:6], set(row[6]))
        rows += row[9] if len(row) > 9 else []
    return found


def test_shared_commands_are_declared_as_redis_declares_them(ours: Server, theirs: RedisServer) -> None:
    declared, known = _declarations(ours.url), _declarations(theirs.url)
    containers = {name.partition("|")[0] for name in declared if "|" in name}
    assert len(declared.keys() & known.keys()) > 150
    for name in sorted(declared.keys() & known.keys() - DECLARED_OTHERWISE.keys()):
        if find_redis().version >= (7,):
            assert declared[name] == known[name], name
        elif name not in containers:  # an older Redis declares no subcommands, but the keys of all of them together
            assert declared[name][2] == known[name][2], name
