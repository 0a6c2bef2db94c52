"""The list of subcommands: each is built only when it is asked for."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from penstock.cli.main import MODULES, app


def test_help_lists_every_subcommand_and_each_has_its_own() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0, shown.output
    listed = [line.split()[0] for line in shown.output.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed == ["serve", *MODULES]
    for name in listed:
        shown = CliRunner().invoke(app, [name, "--help"])
        assert shown.exit_code == 0 and "Usage: " in shown.output, name


@pytest.mark.parametrize(("word", "meant"), [("tial", "tail"), ("server", "serve")])
def test_an_unknown_subcommand_is_reported_with_the_nearest_one(word: str, meant: str) -> None:
    shown = CliRunner().invoke(app, [word])
    assert shown.exit_code == 2
    assert f"No such command '{word}'. Did you mean '{meant}'?" in shown.output
