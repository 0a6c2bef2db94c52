"""The server's log: one record a line, for people or as JSON; levels named as Redis names them.

In JSON a record has a stable event name, and the values of its text by name (log_events.py).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from penstock.engine.config import Config, ConfigError
from penstock.server.log_events import BY_TEXT, OTHER

LEVELS = {"debug": logging.DEBUG, "verbose": logging.INFO, "notice": 25, "warning": logging.WARNING}
NOTICE = 25
logging.addLevelName(NOTICE, "NOTICE")


class TextFormatter(logging.Formatter):
    """`2026-01-31 12:00:00.123 notice server: Ready to accept connections`"""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).isoformat(sep=" ", timespec="milliseconds")
        area = record.name.removeprefix("penstock.")
        text = f"{moment} {record.levelname.lower():7} {area}: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time (UTC), level, area, event, message, process id, the values of the text by name,
    the trace if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        event = BY_TEXT.get(record.msg) if isinstance(record.msg, str) else None
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "area": record.name.removeprefix("penstock."),
            "event": event.name if event is not None else OTHER,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if event is not None and isinstance(record.args, tuple):
            fields |= zip(event.fields, map(_plain, record.args), strict=False)
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _plain(value: object) -> object:
    """A value as JSON can have it: numbers and text as they are, a command as its words."""
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return [_plain(each) for each in value] if isinstance(value, list) else str(value)


def configure(config: Config) -> None:
    """Set up logging for a server process; ConfigError if its file cannot be opened.

    A program that embeds a server keeps its own logging.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stdout)
    if config.logfile:
        try:
            handler = logging.FileHandler(config.logfile, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"logfile {config.logfile} cannot be opened: {error.strerror}") from None
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    package_logger = logging.getLogger("penstock")
    package_logger.handlers[:] = [handler]
    package_logger.propagate = False
    package_logger.setLevel(LEVELS[config.loglevel])
    config.on_change("loglevel", lambda level: package_logger.setLevel(LEVELS[level]))
