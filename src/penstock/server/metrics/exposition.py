"""The text that Prometheus reads, version 0.0.4, and OpenMetrics 1.0 for those that ask for it.

A family is a metric with its help; its samples differ in their labels. A family without samples is written too, so
that a page always shows every metric there is. In OpenMetrics the family of a counter is named without `_total`, which
only its samples have; that, and the last line, is the whole difference here.

Labels are text, and keys are any bytes. `shown_name` writes a key so that different keys stay different, that it is on
one line, and that it is short.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from itertools import accumulate

from penstock.engine.observe.histograms import BOUNDS, Histogram

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LONGEST_NAME = 128
"""Bytes of a key that are shown; of a longer one the beginning, and a checksum of the whole."""

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_BOUNDS = (*(f"{bound:.10g}" for bound in BOUNDS), "+Inf")


def shown_name(name: bytes) -> str:
    r"""A key, or the name of a group, as the text of a label.

    Text is shown as it is. A backslash is doubled, and a byte that is no text or not printable is a number, so two
    names are never shown alike.

    >>> shown_name(b"clicks"), shown_name("käse".encode()), shown_name(b"\xff\n"), shown_name(b"\\xff")
    ('clicks', 'käse', '\\xff\\x0a', '\\\\xff')
    """
    if len(name) > LONGEST_NAME:
        digest = hashlib.blake2b(name, digest_size=8).hexdigest()
        return f"{shown_name(name[: LONGEST_NAME - 32])}\\...{digest}"  # no other name has a backslash before a dot
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = name.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_shown_letter, text))


def _shown_letter(letter: str) -> str:
    if letter == "\\":
        return "\\\\"
    if letter.isprintable():
        return letter
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogateescape"))


def labelled(**labels: str) -> str:
    r"""The labels of a sample.

    >>> labelled(db="db0", stream='a"b')
    '{db="db0",stream="a\\"b"}'
    """
    pairs = ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()])
    return f"{{{pairs}}}"


def shown_number(value: float) -> str:
    return repr(value) if type(value) is float else str(value)


class Page:
    """The text of an answer to /metrics, written family by family."""

    def __init__(self, open_metrics: bool = False) -> None:
        self._open = open_metrics
        self._lines: list[str] = []

    def family(self, name: str, kind: str, help: str) -> None:
        """Begin a family; `sample` adds to it."""
        shown = name.removesuffix("_total") if self._open and kind == "counter" else name
        self._lines += (f"# HELP {shown} {help}", f"# TYPE {shown} {kind}")

    def sample(self, name: str, value: float, labels: str = "") -> None:
        """A sample of the family that was begun; `labels` are those of `labelled`."""
        self._lines.append(f"{name}{labels} {shown_number(value)}")

    def gauge(self, name: str, help: str, value: float) -> None:
        """A family of one sample that goes up and down."""
        self.family(name, "gauge", help)
        self.sample(name, value)

    def counter(self, name: str, help: str, value: float) -> None:
        """A family of one sample that only grows; the name ends in `_total`."""
        self.family(name, "counter", help)
        self.sample(name, value)

    def samples(self, name: str, kind: str, help: str, samples: Iterable[tuple[str, float]]) -> None:
        """A whole family: labels and values."""
        self.family(name, kind, help)
        for labels, value in samples:
            self.sample(name, value, labels)

    def histogram(self, name: str, help: str, histogram: Histogram) -> None:
        """A family of one histogram."""
        self.family(name, "histogram", help)
        self.buckets(bucket_names(name), histogram.buckets, histogram.nanoseconds)

    def buckets(self, names: list[str], buckets: array[int], nanoseconds: int) -> None:
        """The samples of a histogram, by the names of `bucket_names`."""
        counts = [*accumulate(buckets)]
        self._lines += [
            f"{name} {shown_number(value)}"
            for name, value in zip(names, [*counts, nanoseconds / 1e9, counts[-1]], strict=True)
        ]

    def text(self) -> bytes:
        """All of it."""
        return "\n".join([*self._lines, "# EOF\n" if self._open else ""]).encode()


def bucket_names(name: str, **labels: str) -> list[str]:
    """The names of the samples of a histogram, with their labels."""
    outer = labelled(**labels) if labels else ""
    return [
        *(f"{name}_bucket{labelled(**labels, le=bound)}" for bound in _BOUNDS),
        f"{name}_sum{outer}",
        f"{name}_count{outer}",
    ]
