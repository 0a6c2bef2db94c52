"""Options of Spark's Kafka source and sink that have no meaning here, each with its replacement.

`options.py` accepts the others under Kafka's names. Only patterns need a translation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NO_PARTITIONS = "streams have no partitions: name them with the option stream"
_BY_TIME = "give milliseconds since 1970, for all streams, in the option {}"
_RETRIES = "the option retryTimeout says how long a server may be away"
_INSTEAD = {
    "kafka.bootstrap.servers": "name the server with the option url, such as redis://host:6379",
    "kafka.group.id": "the option group publishes progress to a group of the stream",
    "groupidprefix": "the option group publishes progress to a group of the stream",
    "assign": _NO_PARTITIONS,
    "startingoffsetsbytimestamp": _BY_TIME.format("startingTimestamp"),
    "endingoffsetsbytimestamp": _BY_TIME.format("endingTimestamp"),
    "startingoffsetsbytimestampstrategy": "leave it out: a time after the last message means the next one",
    "minoffsetspertrigger": "leave it out: trigger(processingTime=...) makes fewer and larger batches",
    "maxtriggerdelay": "leave it out: trigger(processingTime=...) says how often there is a batch",
    "maxrecordsperpartition": "the option minPartitions says into how many tasks a batch is cut",
    "includeheaders": "messages have no headers: put them into the entry",
    "kafkaconsumer.polltimeoutms": _RETRIES,
    "fetchoffset.numretries": _RETRIES,
    "fetchoffset.retryintervalms": _RETRIES,
}


def instead_of(option: str) -> str | None:
    """Our name for an option of Kafka; None for any other option.

    >>> instead_of("assign")
    'streams have no partitions: name them with the option stream'
    """
    name = option.lower()
    if name.startswith("kafka.") and name not in _INSTEAD:
        return "there is no Kafka client here, so leave it out: the option url has address, user, password and TLS"
    return _INSTEAD.get(name)


def mistake_in_places(places: Mapping[str, Any]) -> str | None:
    """The right form for offsets that are given by partition, or as -1 and -2; None if there is no mistake."""
    for stream, place in places.items():
        if isinstance(place, dict):
            return f'one offset a stream, such as {{"{stream}": 1001}}: streams have no partitions'
        if type(place) is int and place in (-1, -2):
            return f'"{"latest" if place == -1 else "earliest"}" instead of {place}'
    return None


def glob_of(pattern: str) -> str:
    r"""A regular expression as a glob, if it is a simple one.

    >>> glob_of("clicks-.*"), glob_of(r"a\.b.c.+")
    ('clicks-*', 'a.b?c?*')
    """
    pieces = re.findall(r"\.\*|\.\+|\.|\\[^\w\s]|[\w:/#@ -]", pattern)
    if "".join(pieces) != pattern or not pattern:
        raise ValueError(
            "a simple regular expression such as clicks.*; for globs, such as clicks*, there is the option pattern"
        )
    globs = {".*": "*", ".+": "?*", ".": "?"}
    return "".join(globs.get(piece) or _literal(piece[-1]) for piece in pieces)


def _literal(character: str) -> str:
    return f"\\{character}" if character in "*?[]\\^" else character
