"""`penstock schema`: proposed from entries, set, and shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock import Client, Server
from penstock.cli.main import app


@pytest.fixture
def client(ours: Server) -> Iterator[Any]:
    with Client.from_url(ours.url) as client:
        client.flushall()
        yield client


def run(server: Server, *words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["schema", *words, "--url", server.url])
    return done.exit_code, done.stdout, done.stderr


def test_a_proposal_is_printed_as_the_command_that_sets_it(ours: Server, client: Any) -> None:
    client.twrite_many("s s", [("", '{"user":"ada","ms":1,"a b":true}'), ("", '{"user":"bob","ms":2.5}'), ("", "no")])
    code, out, err = run(ours, "infer", "s s")
    assert (code, out) == (0, 'TSCHEMA SET "s s" "user string NOT NULL, ms double NOT NULL, `a b` boolean"\n')
    assert "looked at 3 of 3 messages" in err
    assert "1 of them would not fit, the first at offset 3: not JSON" in err
    assert client.tschema_get("s s") is None


def test_a_proposal_is_set_and_widens_what_is_there(ours: Server, client: Any) -> None:
    client.tschema_set("s", "user string NOT NULL, n int DEFAULT 1")
    client.twrite("s", "", '{"user":"ada","n":7,"page":"/"}')
    code, out, err = run(ours, "infer", "s", "--set")
    assert (code, out) == (0, 'TSCHEMA SET s "user string NOT NULL, n int DEFAULT 1, page string"\n')
    assert "version 2 of the schema of 's' is set" in err
    client.twrite("s", "", '{"user":7,"n":"x"}')
    code, _, err = run(ours, "infer", "s", "--sample", "5")
    assert code == 0
    assert "left out the field user: no type holds both ada and 7" in err


def test_entries_that_fit_the_schema_leave_it_as_it_is(ours: Server, client: Any) -> None:
    fields = "amount decimal(10,2), b binary, m map<string, int>, lines array<struct<price decimal(10,2)>>, f float"
    client.tschema_set("s", fields)
    client.twrite("s", "", '{"amount":12.50,"b":"AP8=","m":{"a":1},"lines":[{"price":1.5}],"f":1.5}')
    assert run(ours, "infer", "s")[:2] == (0, f'TSCHEMA SET s "{fields}"\n')


def test_a_sample_that_contradicts_the_schema_is_reported(ours: Server, client: Any) -> None:
    client.twrite("s", "", '{"n":"x"}')
    client.tschema_set("s", "n int")
    code, out, err = run(ours, "infer", "s")
    assert (code, out) == (1, "")
    assert "the sample does not fit the schema that 's' has, not even a wider one: n is int and string" in err


def test_a_sample_is_taken_from_all_over_the_stream(ours: Server, client: Any) -> None:
    client.twrite_many("s", [("", json.dumps({f"part{n // 100}": n})) for n in range(1000)])
    code, out, err = run(ours, "infer", "s", "--sample", "20")
    assert code == 0
    assert "looked at 20 of 1,000 messages" in err
    assert {f"part{n}" for n in range(10)} <= set(out.replace('"', " ").split())


def test_the_reason_is_reported_if_no_schema_can_be_proposed(ours: Server, client: Any) -> None:
    assert "the stream 's' has no messages to look at" in run(ours, "infer", "s")[2]
    client.twrite("s", "", "plain")
    code, _, err = run(ours, "infer", "s")
    assert code == 1
    assert "no field was found in 1 entries of 's'" in err


def test_a_schema_and_its_versions_are_shown(ours: Server, client: Any) -> None:
    for word in ("show", "versions"):
        code, _, err = run(ours, word, "s")
        assert (code, f"there is no stream 's' at 127.0.0.1:{ours.port}, or nothing" in err) == (1, True)
    client.twrite("s", "", "{}")
    code, _, err = run(ours, "show", "s")
    assert code == 1
    assert "the stream 's' has no schema; `penstock schema infer` proposes one" in err
    client.tschema_set("s", "user string NOT NULL")
    client.tschema_set("s", "user string NOT NULL, n int", check="deadletter", dead_letter="bad")
    assert run(ours, "show", "s")[1].splitlines() == [
        "version 2, since offset 2, CHECK deadletter bad", "  user string NOT NULL", "  n int",
    ]  # fmt: skip
    assert run(ours, "show", "s", "--version", "1")[1].splitlines()[1:] == ["  user string NOT NULL"]
    assert "has no version 3 of a schema" in run(ours, "show", "s", "--version", "3")[2]
    assert run(ours, "versions", "s")[1] == "1\t2\tuser string NOT NULL\n2\t2\tuser string NOT NULL, n int\n"
    assert run(ours, "versions", "t")[0] == 1


def test_entries_that_no_schema_holds_are_named(ours: Server, client: Any) -> None:
    deep = '{"a":' * 900 + "1" + "}" * 900
    client.twrite_many("s", [("", '{"n":1,"\\ud800":1}'), ("", deep)])
    code, out, err = run(ours, "infer", "s")
    assert (code, out) == (0, 'TSCHEMA SET s "n bigint NOT NULL"\n')
    assert "nested more than 32 deep" in err
    assert "its name cannot be written as UTF-8" in err


def test_names_reach_a_terminal_without_control_characters(ours: Server, client: Any) -> None:
    client.twrite("s\n", "", '{"a\\u001b":1}')
    code, out, _ = run(ours, "infer", "s\n", "--set")
    assert (code, out) == (0, 'TSCHEMA SET "s\\x0a" "`a\\x1b` bigint NOT NULL"\n')
    assert "\x1b" not in run(ours, "show", "s\n")[1] + run(ours, "versions", "s\n")[1]
