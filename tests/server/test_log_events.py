"""The log as JSON: every log call in the source has an event with a name, and a real server writes them."""

from __future__ import annotations

import ast
import json
import logging
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import redis
from tests.support.waiting import wait_until

import penstock
from penstock.engine import scripting
from penstock.server import logs
from penstock.server.log_events import ALL, BY_TEXT
from penstock.testing.redis import free_port

ROOT = Path(penstock.__file__).parent
IN_THE_SERVER = ("engine", "commands", "storage", "replication", "server", "types", "protocol", "schema", "shard")
LEVELS = {"exception": "error", "info": "verbose"}
RESERVED = {"time", "level", "area", "event", "message", "pid", "trace"}
_placeholders = re.compile(r"%(?!%)[-+ #0]*\d*(?:\.\d+)?[a-z]").findall


class Call(NamedTuple):
    """A log call in the source."""

    where: str
    text: str | None  # None if it is not written in the call
    level: str


def _calls() -> Iterator[Call]:
    for path in [file for folder in IN_THE_SERVER for file in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (found := _logged(node)) is not None:
                level, text = found
                constant = text.value if isinstance(text, ast.Constant) else None
                yield Call(f"{path.relative_to(ROOT)}:{node.lineno}", constant, level)


def _logged(node: ast.Call) -> tuple[str, ast.expr] | None:
    """The level and the text of a log call."""
    called = node.func
    if isinstance(called, ast.Name) and called.id == "notice":
        return "notice", node.args[0]
    if not (isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "logger"):
        return None
    if called.attr == "log":
        is_notice = isinstance(node.args[0], ast.Attribute) and node.args[0].attr == "NOTICE"
        return "notice" if is_notice else "any", node.args[1]
    return LEVELS.get(called.attr, called.attr), node.args[0]


def test_every_logger_is_named_logger() -> None:
    """So that its calls are found, and `log` is the append-only file."""
    found = re.compile(r"^(\w+) = logging\.getLogger", re.MULTILINE)
    for path in ROOT.rglob("*.py"):
        for name in found.findall(path.read_text(encoding="utf-8")):
            assert name in ("logger", "_logger"), f"{path.relative_to(ROOT)}: {name}"


def test_every_log_call_has_an_event_and_every_event_a_call() -> None:
    calls = list(_calls())
    assert len(calls) > 80
    for call in calls:
        assert call.text in BY_TEXT, f"{call.where}: give it a row in server/log_events.py, and run `make docs`"
        assert BY_TEXT[call.text].level == call.level, call.where
    assert {call.text for call in calls} == set(BY_TEXT), "an event that nothing logs"


def test_names_and_fields_are_unique_and_plain() -> None:
    assert max(Counter(event.name for event in ALL).values()) == 1 == max(Counter(event.text for event in ALL).values())
    for event in ALL:
        assert re.fullmatch("[a-z]+(-[a-z]+)*", event.name), event
        assert len(_placeholders(event.text)) == len(event.fields) == len(set(event.fields)), event
        assert not RESERVED & set(event.fields) and event.help.endswith("."), event


def test_values_of_any_kind_become_json() -> None:
    formatter = logs.JsonFormatter()

    def shown(text: Any, *args: object) -> dict[str, Any]:
        record = logging.LogRecord("penstock.storage", logging.ERROR, "", 0, text, args, None)
        return dict(json.loads(formatter.format(record)))

    lost = shown("history of the stream %r: %s; reads of it get an error", b"\xff\n", OSError("no file"))
    assert (lost["event"], lost["stream"], lost["error"]) == ("history-lost", "\\xff\n", "no file")
    assert shown("internal error in %r", [b"SET", b"a"])["command"] == ["SET", "a"]
    assert shown("replica %s:%d is gone", "host", 7) | {"time": "", "pid": 0} == {
        "time": "", "level": "error", "area": "storage", "event": "replica-gone", "message": "replica host:7 is gone",
        "pid": 0, "host": "host", "port": 7,
    }  # fmt: skip
    assert shown("a module says %s", 1)["event"] == "other"
    assert shown(ValueError("x"))["message"] == "x"


def test_the_levels_of_scripts_are_those_of_the_log() -> None:
    assert set(scripting._LOG_LEVELS) <= set(logs.LEVELS.values())


def test_a_real_server_writes_one_object_a_line(tmp_path: Path) -> None:
    port = free_port()
    words = f"serve --port {port} --dir {tmp_path} --appendonly yes --log-format json --loglevel debug --timeout 1"
    with (tmp_path / "out.json").open("w+") as output:
        process = subprocess.Popen([sys.executable, "-m", "penstock", *words.split()], stdout=output)

        def records() -> list[dict[str, Any]]:
            output.seek(0)
            return [json.loads(line) for line in output.read().splitlines()]

        try:
            wait_until(lambda: "ready" in [record["event"] for record in records()])
            with redis.Redis(port=port, retry=None) as client:
                client.eval("redis.log(redis.LOG_WARNING, 'two\\nlines')", 0)
                client.bgrewriteaof()
                wait_until(lambda: "log-rewritten" in [record["event"] for record in records()])
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        found = {record["event"]: record for record in records()}
    assert all({"time", "level", "area", "event", "message", "pid"} <= set(record) for record in found.values())
    assert set(found) <= {event.name for event in ALL}
    assert str(port) in found["ready"]["addresses"]
    assert (found["script-log"]["text"], found["script-log"]["level"]) == ("two\nlines", "warning")
    assert found["log-rewritten"]["bytes"] > 0 and found["signal"]["signal"] == "SIGTERM"
    assert list(found)[-1] == "bye"
