"""Log lines for operators at Redis's level "notice": a file was loaded or written."""

from __future__ import annotations

import logging

_log = logging.getLogger("penstock.storage")
_NOTICE = 25  # as in server/logs.py; storage does not import the server


def notice(text: str, *values: object) -> None:
    _log.log(_NOTICE, text, *values)
