"""Scrapes of /metrics, read by Prometheus's own parser."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families


def url_of(port: int, path: str = "/metrics") -> str:
    return f"http://127.0.0.1:{port}{path}"


@dataclass(frozen=True)
class Scrape:
    """The families of a scrape by name; that of a counter has no `_total`."""

    text: str
    families: dict[str, Metric]

    def value(self, name: str, **labels: str) -> float:
        """The one sample of this name that has these labels."""
        (found,) = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return float(found)

    def labels(self, name: str, label: str) -> list[str]:
        """The values of a label of all samples of this name."""
        samples = [sample for family in self.families.values() for sample in family.samples]
        return [sample.labels[label] for sample in samples if sample.name == name]


def scrape(port: int, open_metrics: bool = False) -> Scrape:
    request = urllib.request.Request(url_of(port))
    if open_metrics:
        request.add_header("Accept", "application/openmetrics-text; version=1.0.0, text/plain;q=0.5")
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
        kind = answer.headers["Content-Type"]
    assert kind.startswith("application/openmetrics-text" if open_metrics else "text/plain; version=0.0.4")
    parse = parse_open_metrics if open_metrics else text_string_to_metric_families
    families = list(parse(text))
    assert len({family.name for family in families}) == len(families), "a family is there twice"
    return Scrape(text, {family.name: family for family in families})
