"""Draws docs/pictures/terminal.svg: a short session in a terminal, as it is.

    .venv/bin/python docs/pictures/draw_terminal.py

Each command below is run against a server of its own, whose address is added to it, and the picture shows what it
printed. The picture names no font to download: it uses the monospaced font of the reader.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from penstock import Server

COLUMNS = 84
CLICKS = """\
{"user": "ada", "page": "/", "ms": 120}
{"user": "bob", "page": "/tea", "ms": 80}
{"user": "ada", "page": "/cake", "ms": 1900}
"""
COMMANDS = (
    "penstock write clicks --json-tag user < clicks.jsonl",
    "penstock tail clicks --from first --count 3",
    "penstock tail clicks --from first --group billing --count 2",
    "penstock streams",
)
FORMAT = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def run(command: str, url: str) -> str:
    """What a command prints."""
    program, _, takes_input = command.partition(" < ")
    words = [sys.executable, "-m", *program.split(), "--url", url]
    environment = {**os.environ, "COLUMNS": str(COLUMNS)}
    done = subprocess.run(
        words, input=CLICKS if takes_input else "", capture_output=True, text=True, env=environment, check=True
    )
    return (done.stdout + done.stderr).rstrip("\n")


def draw() -> str:
    """The picture of the commands and of their output."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    with Server() as server:
        for number, command in enumerate(COMMANDS):
            if number:
                console.print()
            console.print(Text.assemble(("$ ", "bright_black"), (command, "bold")))
            console.print(Text(run(command, server.url).expandtabs(4)))
    return console.export_svg(title="penstock", code_format=FORMAT, unique_id="terminal")


if __name__ == "__main__":
    Path(__file__).with_name("terminal.svg").write_text(draw(), encoding="utf-8")
