"""EXACTLY_ONCE on the wire: `ONCE client-id number floor command ...` around each write.

A connection has a client-id of its own, so that numbers are given in the order of writing. It takes another id when it
has written nothing for a while, before the server forgets it (`once-idle-timeout`). No id is ever used a second time. A
command keeps the id and the number it was first written with; sent again on another connection it is the same command
to the server.

An id is made known to the server (ONCEBEGIN) before the first command that uses it is written. From then on a server
that does not know it has forgotten it, or is another server, and refuses its commands (ONCEUNKNOWN): so it is never up
to a clock here, which stands still while the machine sleeps, whether a repeat comes too late. Numbers begin at 2, as
ONCEBEGIN wants it.

Which commands are writes is the server's to say: its COMMAND table is read once, before the first write of this level.
Rejected: a table here (it would be wrong for modules and newer servers), and redis-py's list of reads (it knows
nothing of ours). Reads are replayed as they are: they change nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.client.delivery import State
from penstock.client.engine.batch import Batch
from penstock.client.engine.command_kinds import name_of
from penstock.client.engine.declared import UNFLAGGED_WRITES
from penstock.client.errors import NotSent, OutcomeUnknown, reply_error
from penstock.protocol.tuples import number_packed

REMEMBERS = 3600.0
"""Seconds for which a server remembers an idle client, if it does not say: the default of `once-idle-timeout`."""
_FIRST = 2

OnceUnknown = type(reply_error("ONCEUNKNOWN"))


class WriteCommands:
    """The server's commands that change something."""

    def __init__(self, table: Iterable[Sequence[Any]]) -> None:
        """`table` is the reply to COMMAND, not decoded."""
        self._known: set[str] = set()
        self._writes: set[str] = set()
        self.decided: dict[Any, bool] = {}
        """By first word, as callers spell it; what is not here needs a closer look."""
        for row in table:
            self._take(row)
            for sub in row[9] if len(row) > 9 else ():
                self._take(sub)

    def _take(self, row: Sequence[Any]) -> None:
        name = row[0].decode().upper().replace("|", " ")
        flags = set(row[2])
        self._known.add(name)
        if b"readonly" not in flags and (b"write" in flags or name in UNFLAGGED_WRITES):
            self._writes.add(name)

    def __contains__(self, arguments: Sequence[Any]) -> bool:
        head = arguments[0]
        decided = self.decided.get(head)
        if decided is None:
            name = name_of(arguments)
            if name == "TREAD":  # without a group it changes nothing, and the server would keep all that was read
                return any(
                    isinstance(word, str | bytes) and word.upper() in ("GROUP", b"GROUP") for word in arguments[4:]
                )
            decided = name in self._writes
            if name in self._known and " " not in name:
                self.decided[head] = decided
        return decided

    @property
    def has_once(self) -> bool:
        return "ONCEBEGIN" in self._known


class OnceNumbers:
    """The numbers of one client-id."""

    def __init__(self, identity: str, now: float) -> None:
        self._words = _packed(b"ONCE") + _packed(identity.encode())
        self._next = self._floor = _FIRST
        self._used = now

    def is_idle(self, now: float, seconds: float) -> bool:
        """Whether nothing is under way with this id, nor was for so long."""
        return self._floor == self._next and now - self._used >= seconds

    def number(self, batch: Batch, writes: WriteCommands, now: float) -> None:
        """Give each write of a batch its number; a batch that has one keeps it. `now` may be early, but not late."""
        if batch.attempts or batch.numbered is not None:
            return
        decided = writes.decided.get
        chosen = bytearray(batch.count)
        for index, arguments in enumerate(batch.commands):
            is_write = decided(arguments[0])
            chosen[index] = arguments in writes if is_write is None else is_write
        count = sum(chosen)
        if count:
            data, lengths = number_packed(
                batch.data,
                batch.lengths or (len(batch.data),),
                bytes(chosen),
                self._words,
                self._next,
                _packed(b"%d" % self._floor),
            )
            last = self._next + count - 1
            # In one step: after an interrupt it is numbered, or as it was. Its new encoding does not count towards the
            # bounds.
            batch.data, batch.lengths, batch.numbered = data, batch.lengths and lengths, (self, last)
            self._next, self._used = last + 1, now

    def answered(self, batch: Batch) -> None:
        """Its replies are here; as they come in order, so are those of all lower numbers."""
        if batch.numbered is not None and batch.numbered[0] is self:
            self._floor = batch.numbered[1] + 1


def fail_forgotten(batch: Batch) -> None:
    """Replace ONCEUNKNOWN: the server has forgotten this client, so the repeat did not run, and whether the first
    attempt did is not known.
    """
    replies = _inner_replies(batch)
    for index, reply in enumerate(replies):
        if type(reply) is OnceUnknown:
            name = name_of(batch.commands[index + batch.atomic])
            reached = batch.reached if isinstance(batch.reached, State) else batch.reached[index]
            if reached is State.QUEUED:
                replies[index] = NotSent(f"{name} did not run: {reply}", command=name)
            else:
                text = f"{name} was sent before, and the server has forgotten whether it ran: {reply}"
                replies[index] = OutcomeUnknown(text, reached, name)


def is_forgotten(batch: Batch) -> bool:
    """Whether the server knows nothing of the client-id any more."""
    return OnceUnknown in map(type, _inner_replies(batch))


def _inner_replies(batch: Batch) -> list[Any]:
    """Those of the commands themselves; for a transaction they are in that of EXEC."""
    return batch.replies[-1] if batch.atomic and isinstance(batch.replies[-1], list) else batch.replies


def _packed(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def new_client_id() -> str:
    return secrets.token_hex(8)
