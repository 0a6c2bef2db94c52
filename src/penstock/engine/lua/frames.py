"""Change a compiled script: keep its frames on the stack while it calls a library, and give its functions enough stack.

Lua drops the frame of a function that ends in `return redis.call(...)`. Redis's libraries are C functions, for which
Lua makes an exception, so there an error can still name the script's line; ours are Lua functions. So the compiled
script is changed: a tail call of something that was found in a table or by its global name becomes an ordinary call.
Tail calls of local functions, the ones that recursion is written with, stay what they are.

Lua 5.1 copies the parameters of a function with "..." to the top of its stack without asking for room (CVE-2014-5461).
So the room that such a function asks for is made larger by the number of its parameters.

The compiled form is that of Lua 5.1, written by string.dump a moment before; anything else is left alone.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator

_HEADER = (
    b"\x1bLua\x51\x00\x01\x04\x08\x04\x08\x00"  # little-endian, 4-byte int and instruction, 8-byte size and number
)
_MOVE, _GET_UPVALUE, _GET_GLOBAL, _GET_TABLE, _SELF, _CALL, _TAIL_CALL, _CLOSURE = 0, 4, 5, 6, 11, 28, 29, 36
_LOADS = frozenset({_MOVE, _GET_UPVALUE, _GET_GLOBAL, _GET_TABLE, _SELF, _CALL, _CLOSURE})
_BY_NAME = frozenset({_GET_GLOBAL, _GET_TABLE, _SELF})
_PARAMETERS, _IS_VARARG, _STACK_SIZE = 9, 10, 11  # where these bytes of a function's header are
_MAX_STACK_SIZE = 250


def keep_frames(compiled: bytes) -> bytes | None:
    """The same chunk with calls instead of tail calls where a library may be called; None if it cannot be made safe."""
    if not compiled.startswith(_HEADER):
        return compiled
    chunk = bytearray(compiled)
    for header, start, count in _Walk(compiled, len(_HEADER)).functions():
        if chunk[header + _IS_VARARG]:
            size = chunk[header + _STACK_SIZE] + chunk[header + _PARAMETERS]
            if size > _MAX_STACK_SIZE:
                return None
            chunk[header + _STACK_SIZE] = size
        code = array("I", compiled[start : start + 4 * count])  # 4 bytes each; a list would take ten times as much
        if sys.byteorder != "little":
            code.byteswap()
        for at, instruction in enumerate(code):
            if instruction & 0x3F == _TAIL_CALL and _loaded_by(code, at) in _BY_NAME:
                struct.pack_into("<I", chunk, start + 4 * at, instruction & ~0x3F | _CALL)
    return bytes(chunk)


def _loaded_by(code: array[int], call: int) -> int | None:
    """Which operation put the called function into its register."""
    register = code[call] >> 6 & 0xFF
    for at in range(call - 1, -1, -1):
        instruction = code[at]
        operation = instruction & 0x3F
        if operation in _LOADS and instruction >> 6 & 0xFF == register:
            return operation
    return None


class _Walk:
    """Reads a compiled chunk to find where the instructions of its functions are."""

    def __init__(self, chunk: bytes, at: int) -> None:
        self._chunk = chunk
        self._at = at

    def functions(self) -> Iterator[tuple[int, int, int]]:
        """Where the header of a function is, where its instructions are and how many.

        Then those of the functions in it.
        """
        self._skip_string()
        header = self._at
        self._at += 4 + 4 + 4  # first line, last line; upvalues, parameters, varargs, stack size: a byte each
        count = self._int()
        yield header, self._at, count
        self._at += 4 * count
        for _ in range(self._int()):
            self._skip_constant()
        for _ in range(self._int()):
            yield from self.functions()
        lines = self._int()
        self._at += 4 * lines
        for _ in range(self._int()):  # local variables
            self._skip_string()
            self._at += 8
        for _ in range(self._int()):  # names of upvalues
            self._skip_string()

    def _int(self) -> int:
        self._at += 4
        return int.from_bytes(self._chunk[self._at - 4 : self._at], "little")

    def _skip_string(self) -> None:
        self._at += 8 + int.from_bytes(self._chunk[self._at : self._at + 8], "little")

    def _skip_constant(self) -> None:
        kind = self._chunk[self._at]
        self._at += 1
        if kind == 1:  # boolean
            self._at += 1
        elif kind == 3:  # number
            self._at += 8
        elif kind == 4:
            self._skip_string()
