"""EXACTLY_ONCE on the wire: `ONCE client-id number floor command ...` around each write.

A connection has a client-id of its own, so that numbers are given in the order of writing. It takes another id when it
has written nothing for a while, before the server forgets it (`once-idle-timeout`). No id is ever used a second time. A
command keeps the id and the number it was first written with; sent again on another connection it is the same command
to the server.

An id is made known to the server (ONCEBEGIN) before the first command that uses it is written. From then on a server
that does not know it has forgotten it, or is another server, and refuses its commands (ONCEUNKNOWN): so it is never up
to a clock here, which stands still while the machine sleeps, whether a repeat comes too late. Numbers begin at 2, as
ONCEBEGIN wants it.

Which commands are writes is the server's to say, and write_commands.py knows it. Reads are replayed as they are: they
change nothing.
"""

from __future__ import annotations

import secrets
from copy import copy
from typing import Any

from penstock.client.delivery import State
from penstock.client.engine.batch import Batch
from penstock.client.engine.command_kinds import name_of
from penstock.client.engine.write_commands import WriteCommands
from penstock.client.errors import NotSent, OutcomeUnknown, reply_error
from penstock.protocol.tuples import number_packed

REMEMBERS = 3600.0
"""Seconds for which a server remembers an idle client, if it does not say: the default of `once-idle-timeout`."""
_FIRST = 2

OnceUnknown = type(reply_error("ONCEUNKNOWN"))


class OnceNumbers:
    """The numbers of one client-id."""

    def __init__(self, identity: str, now: float) -> None:
        self.identity = identity
        self.refusal: Exception | None = None  # why the server does not know it
        self._words = _packed(b"ONCE") + _packed(identity.encode())
        self._next = self._floor = _FIRST
        self._used = now

    @property
    def is_answered(self) -> bool:
        """Whether all replies are here."""
        return self._floor == self._next

    def is_idle(self, now: float, seconds: float) -> bool:
        """Whether nothing is under way with this id, nor was for so long."""
        return self.is_answered and now - self._used >= seconds

    def number(self, batch: Batch, writes: WriteCommands, now: float) -> None:
        """Give each write of a batch its number; a batch that has one keeps it. `now` may be early, but not late."""
        if batch.numbered is not None or (batch.attempts and not batch.waits_for_leader):
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
        """The replies of a batch that has its numbers from here; as they come in order, so have those of all lower
        ones.
        """
        assert batch.numbered is not None
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


def name_refusal(batch: Batch, refusal: Exception) -> None:
    """Replace ONCEUNKNOWN: the server does not know this client because it has refused it, for this reason."""
    replies = _inner_replies(batch)
    for index, reply in enumerate(replies):
        if type(reply) is OnceUnknown:
            replies[index] = copy(refusal)


def is_forgotten(batch: Batch) -> bool:
    """Whether the server knows nothing of the client-id any more."""
    return OnceUnknown in map(type, _inner_replies(batch))


def _inner_replies(batch: Batch) -> list[Any]:
    """The replies of the commands themselves; for a transaction they are in the reply of EXEC."""
    return batch.replies[-1] if batch.atomic and isinstance(batch.replies[-1], list) else batch.replies


def _packed(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def new_client_id() -> str:
    return secrets.token_hex(8)
