"""Commands that a server refused because it does not lead or lacks replicas: they are sent again to the leader.

READONLY, MASTERDOWN, NOREPLICAS and the UNBLOCKED of a demotion say that a command did not run. So a client that can
look for the leader (`ServerContact.finds_leader`) sends it again at every level, until its time is up. Its caller gets
no error. WAIT and WAITAOF are different: they ask about writes to that server, so their callers get the error. One
NOREPLICAS is different too: the change was made, and may be lost. That counts as a lost connection: the command has no
reply, and its level says what that means.

The connection is left. Nothing more is written on it, what was written is answered, and what the server did not run
goes back to the head of the queue, in order. Reads behind it in the same pipeline are asked again, so that they see it.
Other commands behind it that did run keep their replies: a server that leads again in the middle of a pipeline is no
reason to run them twice.

A transaction ran as a whole or not at all, so it is sent again whole. One with WATCH fails (WatchError): the WATCH is
gone. If EXEC has run, and only a script in it was refused, the caller gets the replies as they are.

Rejected: giving the connection up at the first such reply. Commands at at-most-once behind it would end as
OutcomeUnknown, although the server is about to say that they did not run.
"""

from __future__ import annotations

from typing import Any

from penstock.client.delivery import State
from penstock.client.engine.batch import Batch
from penstock.client.engine.command_kinds import Kind, kind_of
from penstock.client.engine.encoding import pack, pack_many
from penstock.client.engine.once_numbers import OnceNumbers
from penstock.client.engine.write_commands import only_reads

_CODES = ("READONLY", "NOREPLICAS", "MASTERDOWN")
_DEMOTED = "instance state changed"
_MADE = "The change was made"
_ABORTED_BY = "Transaction discarded because of: "


def verdict(line: str) -> State | None:
    """How far a command came that got this error: QUEUED if it did not run and WRITTEN if it may have. None if the
    error is for the caller.

    >>> verdict("READONLY You can't write against a read only replica."), verdict("ERR no such key")
    (<State.QUEUED: 0>, None)
    """
    code, _, text = line.partition(" ")
    if code == "EXECABORT" and text.startswith(_ABORTED_BY):
        code, _, text = text.removeprefix(_ABORTED_BY).partition(" ")
    if code in _CODES:
        return State.WRITTEN if text.startswith(_MADE) else State.QUEUED
    return State.QUEUED if code == "UNBLOCKED" and _DEMOTED in text else None


def asks_about_one_server(batch: Batch) -> bool:
    """Whether the command that is answered next is WAIT or WAITAOF: what another server answers would say nothing about
    the writes that its caller asks about, so the error is for the caller.
    """
    index = len(batch.replies)
    return index < batch.count and kind_of(batch.commands[index]) is Kind.WAITING


def take_back(batch: Batch) -> bool:
    """All replies of a batch are here, and some are as above: have those commands written again. False if the caller
    is to get the replies.
    """
    refused, batch.refused = batch.refused, None
    assert refused is not None
    if batch.atomic:
        if isinstance(batch.replies[-1], list):
            return False
        _remember(batch, refused)
        batch.replies.clear()
    else:
        _remember(batch, refused)
        _cut_replies(batch, refused)
    batch.waits_for_leader = True
    if batch.numbered is not None and not batch.was_written:
        _take_number(batch)
    return True


def _remember(batch: Batch, refused: dict[int, State]) -> None:
    """Keep how far each command came: on this connection, or further on an earlier one."""
    if batch.atomic or batch.count == 1:
        assert isinstance(batch.reached, State)
        batch.reached = max(batch.reached, *refused.values())
    elif any(refused.values()):
        states = [batch.reached] * batch.count if isinstance(batch.reached, State) else batch.reached
        batch.reached = [max(state, refused.get(index, state)) for index, state in enumerate(states)]


def _cut_replies(batch: Batch, refused: dict[int, State]) -> None:
    first = min(refused)
    done = batch.skipped or {}
    kept: dict[int, Any] = {
        index: batch.replies[index]
        for index in range(first, batch.count)
        if index not in refused and index not in done and not only_reads(batch.commands[index])
    }
    del batch.replies[first:]
    batch.learned = min(batch.learned, first)
    if kept:
        batch.skip(kept)


def _take_number(batch: Batch) -> None:
    """It never ran, so it needs no number of an identity that the next server may not know; it gets another one."""
    assert batch.numbered is not None
    numbers = batch.numbered[0]
    assert isinstance(numbers, OnceNumbers)
    numbers.answered(batch)
    if batch.lengths is None:
        batch.data, batch.numbered = pack(batch.commands[0]), None
    else:
        packed = pack_many(batch.commands)
        batch.data, batch.lengths, batch.numbered = packed.data, packed.lengths, None
