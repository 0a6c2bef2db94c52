"""The parts that all readers of requests share: the limits of Redis, and the words of an inline command."""

from __future__ import annotations

import re
from typing import Final

from penstock.protocol.errors import ProtocolError

Argv = list[bytes]

MAX_BULK = 512 * 1024 * 1024
MAX_ARGUMENTS = 1_000_000
MAX_INLINE = 64 * 1024

MORE: Final = object()
"""The value of `take` when no complete command is left."""

_ENDS_WORD = b" \t\r\n"
_HTTP = (b"POST", b"HOST:")
_hex_escape = re.compile(rb"\\x([0-9a-fA-F]{2})").match


def inline_command(line: bytes) -> Argv:
    """The words of a line without its newline; no words for an empty one."""
    words = split_inline(line[:-1] if line.endswith(b"\r") else line)
    if words and words[0].upper() in _HTTP:
        # A browser that was tricked into sending commands in the body of a form must be stopped here.
        raise ProtocolError("Protocol error: this server does not speak HTTP")
    return words


def split_inline(line: bytes) -> Argv:
    """Words of an inline command; double quotes take escapes, single quotes only \\'.

    As in Redis, a vertical tab or form feed is white space between words, and does not end one.

    >>> split_inline(b'SET k "a b\\\\n"')
    [b'SET', b'k', b'a b\\n']
    """
    words: Argv = []
    at, end = 0, len(line)
    while True:
        while at < end and line[at : at + 1].isspace():
            at += 1
        if at >= end:
            return words
        word = bytearray()
        while at < end and line[at] not in _ENDS_WORD:
            mark = line[at : at + 1]
            if mark in (b'"', b"'"):
                at = _quoted(line, at + 1, mark, word)
                if at < end and not line[at : at + 1].isspace():
                    raise ProtocolError("Protocol error: unbalanced quotes in request")
                break
            word += mark
            at += 1
        words.append(bytes(word))


_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def _quoted(line: bytes, at: int, mark: bytes, word: bytearray) -> int:
    """Append the quoted text that starts at `at`; the position after its closing quote."""
    while at < len(line):
        char = line[at : at + 1]
        if char == mark:
            return at + 1
        if char == b"\\" and mark == b'"' and at + 1 < len(line):
            hexadecimal = _hex_escape(line, at)
            if hexadecimal:
                word += bytes.fromhex(hexadecimal[1].decode())
                at += 4
                continue
            char = line[at + 1 : at + 2]
            word += _ESCAPES.get(char, char)
            at += 2
            continue
        if char == b"\\" and line[at + 1 : at + 2] == b"'":
            word += b"'"
            at += 2
            continue
        word += char
        at += 1
    raise ProtocolError("Protocol error: unbalanced quotes in request")
