"""Log lines for operators at Redis's level "notice": a file was loaded or written, a replica came or went."""

from __future__ import annotations

import logging

_NOTICE = 25  # as in server/logs.py; storage does not import the server


def notice(text: str, *values: object, of: str = "storage") -> None:
    """Log a line; `of` is the part of the server that it is about."""
    logging.getLogger(f"penstock.{of}").log(_NOTICE, text, *values)
