"""The guides run: what a page shows is typed into a server, and the answers must be those that the page shows."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.support.docs import DOCS, blocks

from penstock import Server
from penstock.engine.declarations import REGISTRY
from penstock.testing.cluster import RedisCluster

STREAMS = (DOCS / "streams.md").read_text(encoding="utf-8")
# Guides, and how many examples each has at the least.
SESSIONS = {"client.md": 10, "consumers.md": 30, "history.md": 6, "streams.md": 25, "lazy.md": 8}


def on(server: Server, code: str) -> str:
    """The code, talking to a server of ours instead of the one it names."""
    assert "port=6379" in code
    return code.replace("port=6379", f"port={server.port}")


@pytest.fixture
def empty(ours: Server) -> Server:
    with redis.Redis.from_url(ours.url) as client:
        client.flushall()
    return ours


@pytest.mark.parametrize("guide", SESSIONS)
def test_the_session_of_a_guide_goes_as_it_is_shown(empty: Server, guide: str) -> None:
    session = on(empty, "\n".join(blocks((DOCS / guide).read_text(encoding="utf-8"), "pycon")))
    names: dict[str, Any] = {}
    test = doctest.DocTestParser().get_doctest(session, names, f"docs/{guide}", f"docs/{guide}", 0)
    assert len(test.examples) > SESSIONS[guide]
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=said.append, clear_globs=False)
    test.globs["client"].close()
    assert result.failed == 0, "".join(said)


def test_the_arrow_form_is_read_with_the_five_lines_of_the_guide(empty: Server) -> None:
    with redis.Redis.from_url(empty.url) as client:
        client.execute_command("TWRITE", "orders", "ENTRIES", "ada", "tea", "bob", "coffee", "ada", "cake")
        client.execute_command("TEVICT", "orders", 1)
    (code,) = blocks(STREAMS, "python")
    assert len([line for line in code.splitlines() if line]) <= 5, "they are five lines, and should stay so"
    names: dict[str, Any] = {}
    exec(on(empty, code), names)
    names["client"].close()
    table = names["table"]
    assert table.column_names == ["offset", "time", "tag", "entry"]
    assert table.select(["offset", "tag", "entry"]).to_pylist() == [
        {"offset": 2, "tag": b"bob", "entry": b"coffee"},
        {"offset": 3, "tag": b"ada", "entry": b"cake"},
    ]


def test_the_first_program_of_the_readme_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(blocks((DOCS.parent / "README.md").read_text(encoding="utf-8"), "python")[0], names)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1", "2", "3"]
    assert names["table"].num_rows == 3


def test_the_programs_of_the_tutorial_run_as_they_stand(empty: Server, capsys: pytest.CaptureFixture[str]) -> None:
    programs = blocks((DOCS / "tutorial.md").read_text(encoding="utf-8"), "python")
    names: dict[str, Any] = {}
    said = []
    for code in (on(empty, programs[0]), *programs[1:]):
        exec(code, names)
        *_, last = capsys.readouterr().out.splitlines()
        if shown := re.search(r"^print\(.*  # (.*)$", code, re.MULTILINE):
            assert last == shown[1], "as the page shows it"
            said.append(last)
    assert len(said) == 3


def test_the_module_of_the_modules_guide_loads_and_works(tmp_path: Path) -> None:
    (code,) = blocks((DOCS / "modules.md").read_text(encoding="utf-8"), "python")
    (tmp_path / "sjaccard.py").write_text(code)
    before = REGISTRY.saved()
    try:
        with (
            Server(module=[tmp_path / "sjaccard.py"], worker_threshold=1) as server,
            redis.Redis.from_url(server.url, protocol=3) as client,
        ):
            client.sadd("a", 1, 2, 3)
            client.sadd("b", 2, 3, 4)
            client.set("text", "x")
            assert client.execute_command("SJACCARD", "a", "b") == 0.5
            assert client.info("locks")["worker_jobs_done"] == 1
            assert client.execute_command("SWAP", "a", "text") == 2
            assert (client.get("a"), client.scard("text")) == (b"x", 3)
    finally:
        REGISTRY.restore(before)


def test_the_examples_of_the_testing_guide_run() -> None:
    proxy, cluster = blocks((DOCS / "testing.md").read_text(encoding="utf-8"), "python")
    names: dict[str, Any] = {}
    exec(proxy, names)
    assert names["total"] == 3, "after two calls, as the guide says"
    exec(cluster, names)


def test_the_examples_of_the_cluster_guide_run(cluster: RedisCluster) -> None:
    examples = blocks((DOCS / "cluster.md").read_text(encoding="utf-8"), "python")
    assert len(examples) == 4
    for code in examples:
        assert "7000" in code
        exec(code.replace("7000", str(cluster.masters[0].port)), {})


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
