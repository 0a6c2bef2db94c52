"""What the client knows of commands by name agrees with their declarations in the server."""

from __future__ import annotations

import pytest
import redis
from tests.support.client import declared_table

from penstock import Server, commands
from penstock.client.cluster.plan import _ON_ALL_MASTERS, _SPLITS
from penstock.client.cluster.routing import CommandTable
from penstock.client.engine.command_kinds import MAY_WAIT, Kind, kind_of
from penstock.client.engine.declared import (
    BLOCKING,
    COUNTED_KEYS,
    FOUND_KEYS,
    KEYED_SUBCOMMANDS,
    PREFIXES,
    UNFLAGGED_WRITES,
)
from penstock.client.engine.write_commands import WriteCommands, known_table
from penstock.engine.declarations import REGISTRY, Flag

commands.load()

_HARMLESS = {
    "PING", "ECHO", "PUBLISH", "SPUBLISH", "CLIENT", "PUBSUB",
    *(f"CLIENT {word}" for word in (
        "HELP", "ID", "INFO", "GETNAME", "LIST", "KILL", "UNBLOCK", "PAUSE", "UNPAUSE", "TRACKINGINFO", "GETREDIR",
        "CACHING",
    )),
    *(f"PUBSUB {word}" for word in ("HELP", "CHANNELS", "NUMSUB", "NUMPAT", "SHARDCHANNELS", "SHARDNUMSUB")),
}  # fmt: skip
"""Of the groups below, the commands that leave their connection as it is."""

_EXAMPLES = {
    "BLMPOP": "0 2 a b LEFT", "BZMPOP": "0 2 a b MIN", "EVAL": "return 2 a b x", "EVALSHA": "digest 2 a b x",
    "EVAL_RO": "return 2 a b x", "EVALSHA_RO": "digest 2 a b x", "FCALL": "f 2 a b x", "FCALL_RO": "f 2 a b x",
    "LMPOP": "2 a b LEFT", "ZMPOP": "2 a b MIN", "SINTERCARD": "2 a b LIMIT 1", "ZINTERCARD": "2 a b LIMIT 1",
    "ZUNION": "2 a b WEIGHTS 1 2", "ZINTER": "2 a b", "ZDIFF": "2 a b", "ZUNIONSTORE": "c 2 a b",
    "ZINTERSTORE": "c 2 a b", "ZDIFFSTORE": "c 2 a b", "SORT": "a BY store GET store LIMIT 0 1 STORE b",
    "TREAD": "a 1 10 GROUP deadletter RETRY 3 1000 DEADLETTER b BLOCK 5", "XREAD": "COUNT 1 BLOCK 0 STREAMS a b 0 0",
    "LAZY": "SADD a x", "ONCE": "id 2 2 SADD a x", "DEBUG DIGEST-VALUE": "a b", "DEBUG LOCK": "1000 WRITE a b",
}  # fmt: skip
"""Arguments of commands whose keys move, and of subcommands with more than one key."""


def test_the_generated_table_is_up_to_date() -> None:
    assert declared_table.PATH.read_text(encoding="utf-8") == declared_table.text(), (
        "run .venv/bin/python -m tests.support.client.declared_table"
    )


def test_the_client_knows_the_table_of_its_own_version_by_its_digest() -> None:
    with Server() as server, redis.Redis.from_url(server.url) as client:
        reply = client.connection_pool.get_connection()
        reply.send_command("COMMAND")
        read = WriteCommands.parse(reply.read_response(disable_decoding=True))
    known = known_table(REGISTRY.digest())
    assert known is not None and (known._known, known._writes) == (read._known, read._writes)


def test_the_client_knows_how_long_every_blocking_command_may_wait() -> None:
    assert BLOCKING <= MAY_WAIT


@pytest.mark.parametrize("group", ["connection", "transactions", "pubsub"])
def test_every_command_that_may_change_a_connection_is_decided(group: str) -> None:
    found = [command.name for command in REGISTRY.walk() if command.group == group]
    assert found
    ordinary = {name for name in found if kind_of((*name.split(), "1", "1")) is Kind.ORDINARY}
    assert ordinary <= _HARMLESS, "say in command_kinds.py what it does to its connection, or here that it does nothing"


def test_what_reaches_others_without_changing_data_counts_as_a_write() -> None:
    assert {command.name for command in REGISTRY.walk() if Flag.MAY_REPLICATE in command.flags} <= UNFLAGGED_WRITES


def test_commands_that_are_split_by_slot_name_keys_up_to_the_end() -> None:
    for name in _SPLITS:
        (spec,) = REGISTRY.by_name[name.encode()].keys
        assert (spec.first, spec.last) == (1, -1)


def test_what_is_sent_to_all_masters_names_no_key() -> None:
    for name in _ON_ALL_MASTERS:
        command = REGISTRY.find([word.encode() for word in name.split()])
        assert command is not None and not command.keys


@pytest.mark.parametrize("name", sorted({*COUNTED_KEYS, *FOUND_KEYS, *PREFIXES, *KEYED_SUBCOMMANDS}))
def test_the_client_finds_the_keys_that_the_server_finds(name: str) -> None:
    words = [*name.split(), *_EXAMPLES.get(name, "a").split()]
    argv = [word.encode() for word in words]
    command = REGISTRY.find(argv)
    assert command is not None
    rows = [
        [top.name.encode(), top.arity, [word.encode() for word in top.flags.words], 1, 1, 1]
        for top in REGISTRY.by_name.values()
    ]
    keys = command.key_names(argv)
    assert keys and sorted(CommandTable.parse(rows).keys_of(argv)) == sorted(keys)
