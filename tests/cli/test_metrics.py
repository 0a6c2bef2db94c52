"""The dashboard and the alerts: real parsers read them, and every metric that they name is in a real scrape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import redis
import yaml
from tests.support.scraping import scrape
from typer.testing import CliRunner

from penstock import Server
from penstock.cli.main import app
from penstock.testing.redis import free_port

OF_PROMETHEUS = {"up"}
"""Metrics that Prometheus makes itself."""
INSIDE = (
    promql_parser.AggregateExpr, promql_parser.ParenExpr, promql_parser.SubqueryExpr, promql_parser.UnaryExpr,
)  # fmt: skip
"""Expressions with one inside."""


def _printed(name: str) -> str:
    shown = CliRunner().invoke(app, ["metrics", name])
    assert shown.exit_code == 0, shown.output
    return shown.stdout


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return dict(json.loads(_printed("dashboard")))


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(_printed("alerts"))["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def scraped() -> dict[str, set[str]]:
    """The names of all samples that a scrape can have, with their labels, as far as there are samples."""
    port = free_port()
    with Server(metrics_port=port) as server, redis.Redis.from_url(server.url) as client:
        client.execute_command("TWRITE", "s", "t", "e")
        client.execute_command("TREAD", "s", 0, 1, "GROUP", "g")
        with pytest.raises(redis.ResponseError):
            client.execute_command("NONSENSE")
        found = scrape(port)
    names: dict[str, set[str]] = {}
    for family in found.families.values():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        for suffix in suffixes:
            samples = [sample for sample in family.samples if sample.name == family.name + suffix]
            names[family.name + suffix] = {label for sample in samples for label in sample.labels}
    return names


def _expressions(dashboard: dict[str, Any], rules: list[dict[str, Any]]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$stream", ".*")
    for rule in rules:
        yield rule["expr"]


def _selectors(expression: Any) -> Iterator[Any]:
    """Every selector of a metric in a parsed expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    elif isinstance(expression, promql_parser.MatrixSelector):
        yield expression.vector_selector
    elif isinstance(expression, promql_parser.BinaryExpr):
        yield from _selectors(expression.lhs)
        yield from _selectors(expression.rhs)
    elif isinstance(expression, promql_parser.Call):
        for argument in expression.args:
            yield from _selectors(argument)
    elif isinstance(expression, INSIDE):
        yield from _selectors(expression.expr)
    else:
        assert isinstance(expression, promql_parser.NumberLiteral | promql_parser.StringLiteral), expression


def test_every_metric_that_is_named_is_in_a_scrape(
    dashboard: dict[str, Any], rules: list[dict[str, Any]], scraped: dict[str, set[str]]
) -> None:
    used = set()
    for text in _expressions(dashboard, rules):
        for selector in _selectors(promql_parser.parse(text)):
            used.add(selector.name)
            if selector.name not in OF_PROMETHEUS:
                assert selector.name in scraped, f"{selector.name} in {text}"
                labels = {matcher.name for matcher in selector.matchers.matchers} - {"instance"}
                assert labels <= scraped[selector.name], f"labels {labels} in {text}"
    assert len(used) > 40


def test_what_promtool_reads_of_the_alerts_is_right() -> None:
    """Fields that a rule file has, durations, and templates with functions that Prometheus knows."""
    (group,) = yaml.safe_load(_printed("alerts"))["groups"]
    assert set(group) <= {"name", "interval", "limit", "rules", "labels"}
    for rule in group["rules"]:
        assert set(rule) <= {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}, rule
        promql_parser.parse(f"up[{rule.get('for', '1m')}]")
        for text in rule["annotations"].values():
            templates = re.findall(r"\{\{(.*?)\}\}", text)
            assert text.count("{{") == text.count("}}") == len(templates), text
            for template in templates:
                assert re.fullmatch(r" (\$labels\.\w+|\$value)( \| (humanize(Duration|Percentage)?))? ", template), text


def test_the_variables_of_the_dashboard_and_the_questions_of_the_guide_are_parsed(
    dashboard: dict[str, Any], scraped: dict[str, set[str]]
) -> None:
    queries = [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    assert queries
    for query in queries:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert found is not None, query
        (selector,) = _selectors(promql_parser.parse(found[1].replace("$instance", ".*")))
        assert found[2] in scraped[selector.name] | {"instance"}, query
    guide = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|`]+\? \| (`.+`) \|$", guide, re.MULTILINE)
    expressions = [text.replace("\\|", "|") for row in rows for text in re.findall("`([^`]+)`", row)]
    assert len(expressions) > 4
    for text in expressions:
        assert {selector.name for selector in _selectors(promql_parser.parse(text))} <= set(scraped), text


def test_legends_and_texts_name_labels_that_exist(
    dashboard: dict[str, Any], rules: list[dict[str, Any]], scraped: dict[str, set[str]]
) -> None:
    known = {label for labels in scraped.values() for label in labels}
    known |= {"instance", "slave_ip", "slave_port", "master_host", "master_port"}  # of replicas, and of Prometheus
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, target
    for rule in rules:
        text = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= known, rule


def test_the_dashboard_is_what_grafana_imports(dashboard: dict[str, Any]) -> None:
    assert (dashboard["title"], dashboard["uid"]) == ("Penstock", "penstock")
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) > 25
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    text = json.dumps(dashboard["panels"])
    assert set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval"} <= variables
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = {
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    }
    assert len(cells) == sum(at["w"] * at["h"] for at in places), "panels overlap"
    assert all(at["x"] + at["w"] <= 24 for at in places)


def test_every_rule_says_how_grave_it_is_and_what_it_means(rules: list[dict[str, Any]]) -> None:
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical"), rule
        assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith("."), rule
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
