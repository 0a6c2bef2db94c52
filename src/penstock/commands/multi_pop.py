"""The arguments of LMPOP, ZMPOP and the commands that wait for the same: which keys, which end, how many."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.engine.arguments import to_at_least
from penstock.engine.declarations import Argv
from penstock.protocol.errors import syntax_error


@dataclass(frozen=True, slots=True)
class MultiPop:
    """`numkeys key [key ...] first | last [COUNT count]`."""

    names: list[bytes]
    first: bool
    """Pop from the first end: LEFT, or the lowest scores."""
    count: int


def parse_multi_pop(arguments: Argv, first: bytes, last: bytes) -> MultiPop:
    """`first` and `last` are the words for the two ends: LEFT and RIGHT, or MIN and MAX."""
    numkeys = to_at_least(1, arguments[0], "numkeys should be greater than 0")
    end, *options = arguments[numkeys + 1 :] or [b""]
    if end.upper() not in (first, last):
        raise syntax_error()
    if options and (options[0].upper() != b"COUNT" or len(options) == 1):
        raise syntax_error()
    count = to_at_least(1, options[1], "count should be greater than 0") if options else 1
    if len(options) > 2:
        raise syntax_error()
    return MultiPop(arguments[1 : numkeys + 1], end.upper() == first, count)
