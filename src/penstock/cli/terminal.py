"""Shared by the subcommands that print: how they end, and how bytes are shown to people."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def ending_quietly() -> Iterator[None]:
    """Ctrl-C ends with 130; if the reader of our output is gone, end without a message."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # The interpreter flushes stdout once more at its end, and would report an error then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


class RewrittenLine:
    """A line that shows how far a command has come, on a terminal only; and the last one, which always appears."""

    def __init__(self) -> None:
        self._shown = 0.0

    def show(self, text: str) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._shown > 0.2:
            self._shown = time.monotonic()
            print(f"\r{text}", end="", file=sys.stderr, flush=True)

    def end(self, text: str) -> None:
        start = "\r" if sys.stderr.isatty() else ""
        print(f"{start}{text}", file=sys.stderr, flush=True)


def shown_bytes(raw: bytes) -> str:
    """Bytes for people: see `one_line`."""
    return one_line(raw.decode("utf-8", "backslashreplace"))


def one_line(shown: str) -> str:
    """One line, without anything that a terminal would obey."""
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in shown)


def write_as(as_json: bool) -> None:
    """JSON is always UTF-8; a character that a terminal cannot show is escaped."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8" if as_json else None, errors="backslashreplace")
