"""FUNCTION and FCALL where there is no function, on ours and, where it has them, on a real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.since("7.0")


@pytest.fixture
def client(peer: str) -> Iterator[RawClient]:
    with RawClient(int(peer.rpartition(":")[2].split("/")[0])) as client:
        yield client


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("FUNCTION FLUSH", b"OK"),
        ("FUNCTION FLUSH SYNC", b"OK"),
        ("FUNCTION FLUSH async", b"OK"),
        ("FUNCTION FLUSH x", "ERR FUNCTION FLUSH only supports SYNC|ASYNC option"),
        ("FUNCTION FLUSH a b", "ERR unknown subcommand or wrong number of arguments for 'FLUSH'. Try FUNCTION HELP."),
        ("FUNCTION LIST", []),
        ("FUNCTION LIST WITHCODE LIBRARYNAME x", []),
        ("FUNCTION LIST LIBRARYNAME", "ERR library name argument was not given"),
        ("FUNCTION LIST x", "ERR Unknown argument x"),
        ("FUNCTION STATS",
            [b"running_script", None, b"engines", [b"LUA", [b"libraries_count", 0, b"functions_count", 0]]]),
        ("FUNCTION DUMP", b"\n\x00]\x9b\\@\x0f\x7f\xa2\xda"),
        ("FUNCTION RESTORE abc", "ERR DUMP payload version or checksum are wrong"),
        ("FUNCTION DELETE x", "ERR Library not found"),
        ("FUNCTION KILL", "NOTBUSY No scripts in execution right now."),
        ("FUNCTION NOSUCH", "ERR unknown subcommand 'NOSUCH'. Try FUNCTION HELP."),
        ("FCALL f 0", "ERR Function not found"),
        ("FCALL_RO f 1 a", "ERR Function not found"),
    ],
)  # fmt: skip
def test_functions_answer_as_where_there_are_none(client: RawClient, words: str, answer: object) -> None:
    reply = client.ask(words)
    assert (str(reply) if isinstance(answer, str) else reply) == answer


def test_what_was_dumped_is_restored(client: RawClient) -> None:
    client.command("FUNCTION", "DUMP")
    payload = client.read()
    for policy in ("FLUSH", "APPEND", "REPLACE"):
        client.command("FUNCTION", "RESTORE", payload, policy)
        assert client.read() == b"OK"
