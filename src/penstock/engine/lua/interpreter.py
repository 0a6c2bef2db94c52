"""The interpreter of scripts: Lua 5.1 through lupa, its libraries, and how values cross between Lua and Python.

Memory: Lua gets at most MEMORY_LIMIT, so a runaway script gets "not enough memory". The limit only holds while Lua code
runs in protected mode. In a call from Lua to Python it must not be reached: Lua would jump out of the call and leave
the interpreter's lock taken. So a function that Lua calls turns the limit off, puts what it answers into Lua, and turns
the limit on again; what it returns then takes no memory of Lua's (`Lua.hand`).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import secrets
from collections.abc import Callable
from importlib import resources
from typing import Any

import hiredis
from lupa import lua51

from penstock.engine.declarations import Reply
from penstock.engine.lua import native
from penstock.engine.lua.frames import keep_frames
from penstock.protocol.errors import ReplyError
from penstock.protocol.resp import (
    NULL_ARRAY,
    OK,
    Members,
    Pairs,
    Raw,
    RawPieces,
    Status,
    Verbatim,
    encode,
    format_float,
)  # fmt: skip

logger = logging.getLogger("penstock.script")

REDIS_VERSION = b"7.0.15"
REDIS_VERSION_NUMBER = 0x07000F
MEMORY_LIMIT = 1 << 30
LONG_SORT = 4_000_000
"""Elements from which table.sort can be interrupted. It takes four times as long then; C sorts fewer in two seconds."""
LONG_SOURCE = 100_000
MAX_REFERENCES = 256
"""Tables and functions that Lua may hand to Python in one call: room for so many
references is reserved at the start.
"""
AN_ELEMENT, SHORT = 40, 200
"""Bytes that an element of a reply takes in Lua, and of a string that takes no more worth counting."""
_PLAIN = frozenset({bytes, int, float, bool, type(None)})
_OTHER = object()
"""In place of a table or a function where there are many arguments: Python reads none of them."""


class _TooLarge(Exception):
    """A reply needs more memory than a script may have."""


class _Unlimited:
    """`with` it Lua may allocate what it needs; after that, as much as before."""

    def __init__(self, set_limit: Callable[[int], None]) -> None:
        self._set_limit = set_limit
        self.limit = 0  # 0 while no script runs

    def __enter__(self) -> None:
        self._set_limit(0)

    def __exit__(self, *exc: object) -> None:
        self._set_limit(self.limit)


class Lua:
    """The Lua state, and values on their way into it."""

    def __init__(self, functions: Callable[[Lua], dict[str, Callable[..., Any]]]) -> None:
        self._runtime = lua51.LuaRuntime(
            encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False,
            attribute_filter=_no_attributes, max_memory=0,
        )  # fmt: skip
        self.table = self._runtime.table_from
        self.memory_used = self._runtime.get_memory_used
        self._set_limit = self._runtime.set_max_memory
        self._unlimited = _Unlimited(self._set_limit)
        self._slot, self.ok_mark, self._status_mark = self.table([False]), self.table([]), self.table([])
        self._gathered: list[Any] = []
        self._code = 0  # bytes that compiled scripts take, about: no script has less memory for the others
        self._room = 0  # bytes that the reply on its way may still take
        self._reserve()
        null = self._runtime.execute(
            b"local null = newproxy(true) local meta = getmetatable(null) meta.__metatable = false "
            b"meta.__tostring = function() return 'userdata: (nil)' end return null"
        )
        spent, set_look = self._chunk("effort.lua")
        crossing = self._chunk("host.lua", self._gather, MEMORY_LIMIT, spent)
        tables = {}
        for library, natives in {"bit": native.BIT, "struct": native.STRUCT}.items():
            handing = {name: self._handing(function) for name, function in natives.items()}
            tables[library.encode()] = self._functions(handing)
            tables[library.encode() + b"_gathered"] = self._functions(self._all_gathered(handing))
        libraries = self._chunk("native.lua", self.table(tables), self._slot, spent, crossing[b"outside"])
        libraries[b"cjson"] = self._chunk("cjson.lua", null, spent)
        libraries[b"cmsgpack"] = self._chunk("cmsgpack.lua")
        hosted: dict[str, Callable[..., Any]] = {
            **functions(self), "limit_memory": self.limit_memory, "keep_frames": self._keep_frames,
            "sha1hex": self._handing(_sha1hex),
        }  # fmt: skip
        host = self._functions({
            name: function if name == "call" else self._answering(function) for name, function in hosted.items()
        })  # fmt: skip
        host[b"gathered"] = self._functions(self._all_gathered(hosted))
        host[b"version"], host[b"version_number"] = REDIS_VERSION, REDIS_VERSION_NUMBER
        host[b"long_sort"], host[b"seed"] = LONG_SORT, 1 + secrets.randbelow((1 << 31) - 2)
        host[b"slot"], host[b"ok_mark"], host[b"status_mark"] = self._slot, self.ok_mark, self._status_mark
        pattern_function, _, host[b"max_pattern_of_c"] = self._chunk("patterns.lua", spent)
        self.run, self._compile = self._chunk(
            "sandbox.lua", host, crossing, libraries, self._loaded("library.lua"), pattern_function, spent, set_look
        )

    def _loaded(self, name: str) -> Any:
        source = resources.files("penstock.engine.lua").joinpath(name).read_bytes()
        load = self._runtime.execute(b"return function(source, name) return assert(loadstring(source, name)) end")
        return load(source, b"=" + name.encode())

    def _chunk(self, name: str, *arguments: Any) -> Any:
        return self._loaded(name)(*arguments)

    def _reserve(self) -> None:
        """Make room for references from Python to tables, so that a call from Lua that
        hands some over allocates none.
        """
        tables = [self.table([]) for _ in range(MAX_REFERENCES)]
        del tables

    def _functions(self, functions: dict[str, Callable[..., Any]]) -> Any:
        return self.table({name.encode(): function for name, function in functions.items()})

    def compile(self, source: bytes) -> tuple[bool, Any]:
        """(True, the function), or (False, why not)."""
        is_long = len(source) > LONG_SOURCE  # then the garbage of the compiler matters
        if is_long:
            self.collect()
        before = self.memory_used()
        ok, function = self._compile(source)
        if is_long:
            self.collect()
        if ok:
            self._code += max(self.memory_used() - before, 0)
        return ok, function

    def forget_code(self) -> None:
        """No compiled script is used any more."""
        self.collect()
        self._code = 0

    def limit_memory(self, limited: bool) -> None:
        self._gathered = []
        self._unlimited.limit = MEMORY_LIMIT + self._code if limited else 0
        self._set_limit(self._unlimited.limit)

    def collect(self) -> None:
        self._runtime.gccollect()

    # -- answers to Lua, see the top of this file ---------------------------------------------------------------

    def hand(self, reply: Reply, protocol: int) -> Any:
        """Put a reply into Lua and answer what refers to it; `received` in lua/sandbox.lua is the other half."""
        if type(reply) is int:
            return _integer(reply)
        if type(reply) is bytes:
            set_limit = self._set_limit  # what `_unlimited` does, and quicker
            try:
                set_limit(0)
                self._slot[1] = reply
            finally:
                set_limit(self._unlimited.limit)
            return True
        if reply is OK:
            return self.ok_mark
        if reply is None:
            return None if protocol == 3 else False
        with self._unlimited:
            if isinstance(reply, Status):
                self._slot[1] = bytes(reply)
                return self._status_mark
            self._room = MEMORY_LIMIT
            try:
                value = self.value(reply, protocol)
            except _TooLarge:
                return self.error(b"ERR not enough memory")
            if type(value) is bytes or value is True:
                self._slot[1] = value
                return True
            return value

    def _gather(self, is_first: bool, *arguments: Any) -> bool:
        """Take arguments of the next call, too many for one; `hand_over` in lua/host.lua is the other half."""
        if is_first:
            self._gathered = []
        self._gathered += [argument if type(argument) in _PLAIN else _OTHER for argument in arguments]
        return True

    def _all_gathered(self, functions: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
        """The same functions, called with what was gathered after the arguments of the call."""

        def bound(function: Callable[..., Any]) -> Callable[..., Any]:
            def called(*leading: Any) -> Any:
                gathered, self._gathered = self._gathered, []
                return function(*leading, *gathered)

            return self._answering(called)

        return {name: bound(function) for name, function in functions.items()}

    def _answering(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that answers its errors. An exception would be an object that a script could hold."""

        def answering(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except Exception as error:
                return self._internal_error(function.__name__, error)

        return answering

    def _internal_error(self, name: str, error: Exception) -> Any:
        logger.exception("internal error in a script's %r", name, exc_info=error)
        with self._unlimited:
            return self.error(f"ERR internal error: {error!r}".encode("utf-8", "backslashreplace"))

    def _hand_values(self, values: tuple[Any, ...] | native.Refusal) -> Any:
        with self._unlimited:
            if isinstance(values, native.Refusal):
                return self.table({b"err": bytes(values)})
            if len(values) != 1:
                return self.table([_integer(value) if type(value) is int else value for value in values])
            value = values[0]
            if type(value) is bytes:
                self._slot[1] = value
                return True
            return _integer(value) if type(value) is int else value

    def _handing(self, function: native.Function) -> Callable[..., Any]:
        """A function of lua/native.py as Lua calls it."""

        @functools.wraps(function)
        def handing(*arguments: Any) -> Any:
            try:
                return self._hand_values(function(*arguments))
            except Exception as error:
                return self._internal_error(function.__name__, error)

        return handing

    def _keep_frames(self, compiled: bytes) -> bool:
        patched = keep_frames(compiled)
        with self._unlimited:
            if patched is not None:
                self._slot[1] = patched
        return patched is not None

    def error(self, text: bytes) -> Any:
        return self.table({b"err": text, b"ignore_error_stats_update": True})

    def value(self, reply: Reply, protocol: int) -> Any:
        """A reply as Lua sees it, in the form of a protocol version."""
        kind = type(reply)
        if kind is bytes:
            if len(reply) > SHORT:
                self._take(len(reply))
            return reply
        if kind is int:
            return _integer(reply)
        if reply is None or reply is NULL_ARRAY:
            return None if protocol == 3 else False
        if kind is list or kind is tuple:
            self._take(AN_ELEMENT * len(reply))
            return self.table([self.value(item, protocol) for item in reply])
        if isinstance(reply, Status):
            return self.table({b"ok": bytes(reply)})
        if isinstance(reply, ReplyError):
            return self.error(reply.wire())
        if kind is bool and protocol == 3:
            return reply
        if kind is Raw or kind is RawPieces:
            wire = encode(reply)
            if wire.startswith(b"("):
                return self.table({b"big_number": wire[1:-2]})
            return self.value(_decoded(wire), protocol)
        if protocol == 2:
            return self._flat(reply)
        return self._rich(reply)

    def _take(self, size: int) -> None:
        """Refuse a reply that is larger than a script's memory. It may name one long string thousands of times, and Lua
        would look at all of it for each.
        """
        self._room -= size
        if self._room < 0:
            raise _TooLarge

    def _flat(self, reply: Reply) -> Any:
        """RESP2: everything is an array or a string."""
        if isinstance(reply, dict):
            return self.value([item for pair in reply.items() for item in pair], 2)
        if isinstance(reply, Pairs):
            return self.value([item for pair in reply for item in pair], 2)
        return self._plain(reply, 2)

    def _rich(self, reply: Reply) -> Any:
        """RESP3: the types that Lua lacks are tables with one field that names the type."""
        if isinstance(reply, dict):
            rows = {self.value(key, 3): self.value(item, 3) for key, item in reply.items() if key is not None}
            return self.table({b"map": self.table(rows)})
        if isinstance(reply, set | frozenset | Members):
            members = (self.value(item, 3) for item in reply if item is not None)  # as a key lupa makes an object of it
            return self.table({b"set": self.table(dict.fromkeys(members, True))})
        if isinstance(reply, float):
            return self.table({b"double": reply})
        if isinstance(reply, Verbatim):
            text = reply.encode("utf-8", "surrogateescape")
            return self.table({b"verbatim_string": self.table({b"string": text, b"format": b"txt"})})
        return self._plain(reply, 3)

    def _plain(self, reply: Reply, protocol: int) -> Any:
        """What is the same in both."""
        if isinstance(reply, float):
            return format_float(reply)
        if isinstance(reply, bool):
            return int(reply)
        if isinstance(reply, str):
            return reply.encode("utf-8", "surrogateescape")
        if isinstance(reply, bytes | bytearray | memoryview):
            return bytes(reply)
        return self.value(list(reply), protocol)


def _decoded(wire: bytes) -> Reply:
    """The value in a reply that its handler encoded: messages of a stream, many elements of anything."""
    reader = hiredis.Reader()
    reader.feed(wire)
    reply = reader.gets()
    if wire.startswith(b"|"):
        reply = reader.gets()  # scripts do not see attributes, only the reply behind them
    return set(reply) if wire.startswith(b"~") else reply  # hiredis makes a list of a set


def _integer(number: int) -> int | float:
    """lupa refuses larger ones, and to Lua all numbers are doubles."""
    return number if -(1 << 63) <= number < 1 << 63 else float(number)


def _no_attributes(target: object, name: object, setting: bool) -> str:
    """No script gets at anything of a Python object, should it ever hold one."""
    raise AttributeError("not accessible")


def _sha1hex(text: bytes) -> tuple[bytes]:
    return (hashlib.sha1(text, usedforsecurity=False).hexdigest().encode(),)
