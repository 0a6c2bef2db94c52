"""`penstock metrics dashboard` and `penstock metrics alerts`: files for Grafana and Prometheus."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from penstock.cli.dashboard import dashboard

ALERTS = Path(__file__).parent / "monitoring" / "alerts.yml"

metrics = typer.Typer(
    name="metrics", help="Print a dashboard for Grafana, and alerts for Prometheus.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    app.add_typer(metrics)


@metrics.command("dashboard")
def print_dashboard() -> None:
    """Print a dashboard to import into Grafana."""
    print(json.dumps(dashboard(), indent=2))


@metrics.command("alerts")
def print_alerts() -> None:
    """Print alert rules, a file for rule_files of Prometheus."""
    print(ALERTS.read_text(encoding="utf-8"), end="")
