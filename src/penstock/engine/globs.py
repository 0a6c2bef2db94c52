"""Glob patterns as Redis matches them, for KEYS, SCAN, PSUBSCRIBE, CONFIG GET and ACL rules.

A pattern becomes a predicate once and is kept. `*` and `prefix*`, nearly all that is used, need no regular expression;
the rest compile to one whose stars are atomic, so that no pattern backtracks: a client cannot stall the server with
`a*a*a*a*b`. Python's fnmatch was rejected: it negates classes with `!`, knows no escapes and reads `[z-a]` otherwise.

Redis's corners, kept on purpose: bytes from 128 on come before all others in a range, as signed chars do; a class
without its `]` ends with the pattern; `[a-]` is the range from `]` to `a`; the empty string matches only the empty
pattern and `*` itself (which Redis's callers test for before they match).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

Predicate = Callable[[bytes], bool]

_SPECIAL = re.compile(rb"[*?\[\\]").search
_LOWER = bytes(range(256)).lower()
_ANY = b"."


@lru_cache(maxsize=1024)
def compile_glob(pattern: bytes, ignore_case: bool = False) -> Predicate:
    """A function that tells whether a name matches.

    >>> compile_glob(b"user:[0-9]*")(b"user:7:name")
    True
    >>> compile_glob(b"MAX*", ignore_case=True)(b"maxmemory")
    True
    """
    if pattern == b"*":
        return lambda name: True
    if not ignore_case:
        if not _SPECIAL(pattern):
            return lambda name: name == pattern
        prefix = pattern[:-1]
        if pattern.endswith(b"*") and not _SPECIAL(prefix):
            return lambda name: name.startswith(prefix)
    match = re.compile(_expression(pattern, ignore_case), re.DOTALL).match
    return lambda name: match(name) is not None


def _expression(pattern: bytes, ignore_case: bool) -> bytes:
    """The regular expression of a pattern: pieces of fixed length, separated by stars.

    As each piece has a fixed length, its leftmost match is as good as any later one; only the last must be at the end.
    """
    pieces = _pieces(pattern, ignore_case)
    if len(pieces) == 1:
        return pieces[0] + rb"\Z"
    first, *middle, last = pieces
    stars = b"".join(b"(?>.*?" + piece + b")" for piece in middle if piece)
    # A star does not match the empty name, though it may match an empty rest of one.
    return b"(?=.)" + first + stars + (b".*" + last + rb"\Z" if last else b"")


def _pieces(pattern: bytes, ignore_case: bool) -> list[bytes]:
    """What stands between the stars, as regular expressions."""
    pieces = [b""]
    at = 0
    while at < len(pattern):
        character = pattern[at : at + 1]
        at += 1
        if character == b"*":
            pieces.append(b"")
        elif character == b"?":
            pieces[-1] += _ANY
        elif character == b"[":
            accepted, at = _class(pattern, at, ignore_case)
            pieces[-1] += _one_of(accepted)
        else:
            if character == b"\\" and at < len(pattern):
                character = pattern[at : at + 1]
                at += 1
            pieces[-1] += _one_of({*character.lower(), *character.upper()} if ignore_case else {*character})
    return pieces


def _class(pattern: bytes, at: int, ignore_case: bool) -> tuple[set[int], int]:
    """The bytes that the class whose inside starts at `at` accepts, and where the pattern goes on."""
    fold = _LOWER if ignore_case else bytes(range(256))
    negated = pattern[at : at + 1] == b"^"
    at += negated
    exact: set[int] = set()  # escaped: compared as they are, whatever the case
    folded: set[int] = set()
    while at < len(pattern) and pattern[at] != 0x5D:  # ]
        left = len(pattern) - at
        if left >= 2 and pattern[at] == 0x5C:  # backslash
            exact.add(pattern[at + 1])
            at += 2
        elif left >= 3 and pattern[at + 1] == 0x2D:  # -
            low, high = sorted((_signed(pattern[at]), _signed(pattern[at + 2])))
            folded.update(byte & 0xFF for byte in range(_signed(fold[low]), _signed(fold[high]) + 1))
            at += 3
        else:
            folded.add(fold[pattern[at]])
            at += 1
    accepted = {byte for byte in range(256) if (byte in exact or fold[byte] in folded) != negated}
    return accepted, at + 1


def _signed(byte: int) -> int:
    """A byte as a C compiler for x86 reads a char."""
    return byte - 256 if byte > 127 else byte


def _one_of(accepted: set[int]) -> bytes:
    """An expression for one byte out of a set."""
    if len(accepted) == 1:
        return re.escape(bytes(accepted))
    if len(accepted) == 256:
        return _ANY
    if not accepted:
        return b"(?!)."  # keeps its length of one, and never matches
    return b"[" + b"".join(b"\\x%02x" % byte for byte in sorted(accepted)) + b"]"
