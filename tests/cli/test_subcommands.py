"""The list of subcommands: each is built only when it is asked for."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_the_agent_is_no_subcommand_and_the_error_says_what_starts_it() -> None:
    shown = CliRunner().invoke(app, ["agent", "--shard", "orders"])
    assert shown.exit_code == 2
    assert "There is no command 'agent': `penstock serve --etcd URL --shard NAME --node NAME` starts" in shown.output


INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)

from penstock.cli.start import start
sys.meta_path.insert(0, Interrupt())
start()
"""


@pytest.mark.parametrize(
    ("words", "module"),
    [
        ("tail x", "penstock.cli.secrets"), ("tail x", "typer"), ("streams", "penstock.cli.streams"),
        ("streams", "rich.console"), ("tail x", "redis"), ("run x", "penstock.cli.run"),
    ],
)  # fmt: skip
def test_control_c_while_a_subcommand_is_imported_ends_it_without_a_traceback(words: str, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *words.split()], capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "INTERRUPT_AT": module},
    )  # fmt: skip
    assert (done.returncode, done.stderr, done.stdout) == (130, "", "")
