"""Draws the output of a command as a picture of a terminal, in SVG.

    penstock demo | python docs/pictures/draw_terminal.py 'penstock demo' docs/pictures/demo.svg

The picture names no font to download: it uses the monospaced font of the reader.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 104
FORMAT = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
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


def draw(command: str, output: str) -> str:
    """The picture of a command and what it printed; the sentence with the result is green."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    console.print(Text.assemble(("$ ", "bright_black"), (command, "bold")))
    text = Text(output.rstrip("\n"))
    text.highlight_regex(re.compile(r"^All [\s\S]*?exactly once", re.M), "bold green")
    console.print(text)
    return console.export_svg(title=command, code_format=FORMAT, unique_id="terminal")


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(sys.argv[1], sys.stdin.read()), encoding="utf-8")
