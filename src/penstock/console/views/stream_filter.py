"""The filter of the list of streams: words that a name has in it, and bounds of figures, such as `lag>100 size>1mb`.

A word that is no bound is looked for in the names of streams and of their groups. A stream must pass all words.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

from penstock.console.sampler import StreamSample

FIGURES: dict[str, Callable[[StreamSample], float]] = {
    "lag": lambda stream: stream.lag,
    "behind": lambda stream: stream.behind / 1000,
    "rate": lambda stream: stream.rate,
    "size": lambda stream: stream.size,
    "length": lambda stream: stream.length,
    "pending": lambda stream: stream.pending,
}
"""What a list is sorted and filtered by, besides the name. `behind` is in seconds."""
_UNITS: dict[str, dict[str, float]] = {
    "size": {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40},
    "behind": {"": 1, "ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400},
}
_COUNTS: dict[str, float] = {"": 1, "k": 1e3, "m": 1e6}
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
_bound = re.compile(rf"({'|'.join(FIGURES)})([<>]=?)(\d{{1,15}}(?:\.\d{{1,3}})?)([a-z]*)").fullmatch

Passes = Callable[[StreamSample], bool]


def passes(text: str) -> Passes:
    """Whether a stream passes all words of a filter.

    >>> from types import SimpleNamespace as Stream
    >>> clicks = Stream(key=b"Clicks", groups=[], lag=200, size=5 << 20)
    >>> [passes(text)(clicks) for text in ("clicks lag>100", "lag>0.2k", "size>=5mb", "size<1mb", "lag>", "lag>1mb")]
    [True, False, True, False, False, False]
    """
    each = [_word(word) for word in text.lower().split()[:20]]
    return lambda stream: all(word(stream) for word in each)


def _word(word: str) -> Passes:
    found = _bound(word)
    unit = _UNITS.get(found[1], _COUNTS).get(found[4]) if found else None
    if found is not None and unit is not None:
        figure, compare, bound = FIGURES[found[1]], _COMPARED[found[2]], float(found[3]) * unit
        return lambda stream: compare(figure(stream), bound)
    raw = word.encode("utf-8", "replace")
    return lambda stream: raw in stream.key.lower() or any(raw in group.name.lower() for group in stream.groups)
