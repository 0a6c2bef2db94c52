"""`penstock letters list` and `penstock letters replay`: dead letters from a terminal.

A replay appends the message of each letter to the stream that it came from, and moves a group of the dead-letter stream
past the letter. Both happen in one transaction, which fails if the dead-letter stream changed in between. So the
group's position is always exactly how far letters were put back: an interrupted replay continues there, two replays at
once do not repeat each other, and `penstock streams` shows how many letters are left as the group's lag. A message that
is still bad becomes a new letter.

Rejected: producers' numbers (TWRITE ... PRODUCER), which a stream forgets when there are many, and removing letters,
which are evidence.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any

import typer

from penstock.cli.server_link import URL, Link, Lost
from penstock.cli.terminal import RewrittenLine, ending_quietly, one_line, shown_bytes
from penstock.protocol.dead_letters import Letter, name_in_text
from penstock.schema.fitting import misfit
from penstock.schema.parser import parse

GROUP = "penstock-letters-replay"
"""The group of a dead-letter stream whose position says how far its letters were put back."""
_AT_ONCE = 500
_BYTES_AT_ONCE = 4 << 20
Call = Callable[..., Any]

letters = typer.Typer(name="letters", help="List dead letters, and put their messages back.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(letters)


@letters.command("list")
def list_letters(
    stream: str = typer.Argument(..., help="The dead-letter stream."),
    count: int = typer.Option(20, "--count", min=1, help="Show at most so many."),
    replayed: bool = typer.Option(False, "--all", help="Also letters whose messages were put back."),
    url: str = URL,
) -> None:
    """Show the letters of a dead-letter stream whose messages were not put back: where, why, and the entry."""
    link = Link(url, "letters")
    link.check()
    with ending_quietly():
        try:
            box = _LetterBox(link, stream)
            place, left = box.first if replayed else box.position(), count
            while left and (found := box.read(place, min(left, _AT_ONCE))):
                for offset, _, raw in found:
                    print(f"{offset}\t{_shown(raw)}", flush=True)
                place, left = found[-1][0] + 1, left - len(found)
            waiting = box.last + 1 - place
        except Lost as error:
            link.fail(f"lost {link.place} ({error})")
    if waiting > 0:
        link.say(f"{waiting:,} more; --count {count + waiting} shows them")


def _shown(raw: bytes) -> str:
    try:
        letter = Letter.decode(raw)
    except ValueError as error:
        return f"no letter ({error}): {shown_bytes(raw)}"
    place = "-" if letter.offset is None else letter.offset
    return f"{_name(letter.stream)} {place}\t{one_line(letter.why or 'given up')}\t{shown_bytes(letter.entry)}"


def _name(stream: bytes) -> str:
    """The name of a stream for people."""
    return one_line(name_in_text(stream))


@letters.command("replay")
def replay(
    stream: str = typer.Argument(..., help="The dead-letter stream."),
    count: int = typer.Option(None, "--count", min=1, help="Put back at most so many."),
    skip: bool = typer.Option(False, "--skip", help="Pass over letters that cannot be put back, and name each."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be put back, and change nothing."),
    url: str = URL,
) -> None:
    """Put the messages of dead letters back at the end of the streams they came from.

    Each letter is put back once, also if the replay is interrupted and run again. The letters stay.
    """
    link = Link(url, "letters")
    link.check()
    box = _LetterBox(link, stream, skip)
    progress = _Progress(link, dry_run)
    with ending_quietly():
        try:
            place = box.position()
            while (count is None or progress.done < count) and place <= box.last:
                limit = _AT_ONCE if count is None else min(_AT_ONCE, count - progress.done)
                # A step may be repeated: it first asks how far letters were put back.
                place = link.patiently(partial(box.put_back, place, limit, progress))
        finally:
            progress.summary(stream)


class _LetterBox:
    """A dead-letter stream, and how far its letters were put back."""

    def __init__(self, link: Link, stream: str, skip: bool = False) -> None:
        self._link = link
        self._skip = skip
        self._stream = stream
        self._key = os.fsencode(stream)
        self.first, self.last = self._bounds(link.call)
        if not self.last:
            link.fail(f"there is no stream '{stream}' at {link.place}, or nothing was written to it")

    def _bounds(self, call: Call) -> tuple[int, int]:
        (first, last), *_ = call("TREAD", self._key, 1, 0, "WITHINFO")
        return first, last

    def position(self, call: Call | None = None) -> int:
        """The offset of the first letter that was not put back."""
        groups = (call or self._link.call)("TGROUP", "LIST", self._key)
        known: list[int] = [group[b"position"] for group in groups if group[b"name"] == GROUP.encode()]
        return max([self.first, *known])

    def read(self, place: int, count: int, call: Call | None = None) -> list[tuple[int, bytes, bytes]]:
        """The next letters: offset, tag, entry. Letters that compaction removed are left out."""
        found: list[tuple[int, bytes, bytes]] = []
        while not found and place <= self.last:
            messages = (call or self._link.call)("TREAD", self._key, place, count, "MAXBYTES", _BYTES_AT_ONCE)
            found = [tuple(message) for message in messages if message is not None]
            place += len(messages)
        return found

    def put_back(self, place: int, limit: int, progress: _Progress) -> int:
        """Put the next letters back, from `place` or from where another replay is by now; answer where to continue."""
        plan = _Plan(place)

        def commands(call: Call) -> list[tuple[object, ...]]:
            nonlocal plan
            plan = _Plan(max(place, self.position(call)))
            for message in self.read(plan.place, limit, call):
                plan.add(*message)
            if plan.end == plan.place:  # compaction removed the rest
                plan.end = self.last + 1
            for target in list(plan.targets):
                for offset, why in self._obstacles(plan, target, call):
                    if not self._skip:
                        self._link.fail(
                            f"the letter at offset {offset} cannot be put back: {why}. The letters from offset "
                            f"{plan.place} on were not put back; --skip passes over such letters"
                        )
                    plan.leave_out(target, offset, why)
            return [*plan.commands(), ("TGROUP", "SET", self._key, GROUP, plan.end)]

        if progress.dry_run:
            commands(self._link.call)
        elif self._link.change(self._key, commands) is None:
            return place  # the stream changed in between: look again
        progress.add(plan)
        return plan.end

    def _obstacles(self, plan: _Plan, target: bytes, call: Call) -> list[tuple[int, str]]:
        """The letters to a target that cannot be put back, and why.

        An entry that its stream's schema would refuse, or turn into another letter, is one of them.
        """
        if call("TYPE", target) not in (b"tstream", b"none"):
            return [(offset, f"'{_name(target)}' is no stream") for offset, _ in plan.entries(target)]
        schema = call("TSCHEMA", "GET", target)
        if schema is None or schema[b"check"] == b"off":
            return []
        wanted = parse(schema[b"fields"].decode())
        return [
            (
                offset,
                f"it still does not fit the schema of '{_name(target)}' ({one_line(why)}); widen the schema, or set "
                "CHECK off",
            )
            for offset, entry in plan.entries(target)
            if (why := misfit(wanted, entry))
        ]


class _Plan:
    """Letters to put back in one transaction."""

    def __init__(self, place: int) -> None:
        self.place = self.end = place
        self.targets: dict[bytes, dict[int, tuple[bytes, bytes]]] = {}
        """By stream, the messages to put back: by the offset of its letter, the tag and the entry."""
        self.skipped: list[tuple[int, str]] = []
        """The letters that are passed over, and why."""

    def add(self, offset: int, tag: bytes, raw: bytes) -> None:
        self.end = offset + 1
        try:
            letter = Letter.decode(raw)
        except ValueError:
            self.skipped.append((offset, "it is not a letter"))
        else:
            self.targets.setdefault(letter.stream, {})[offset] = tag, letter.entry

    def entries(self, target: bytes) -> Iterable[tuple[int, bytes]]:
        """The offset of each letter to a target, and the entry in it."""
        return [(offset, entry) for offset, (_, entry) in self.targets[target].items()]

    def leave_out(self, target: bytes, offset: int, why: str) -> None:
        """Pass over a letter."""
        self.skipped.append((offset, why))
        del self.targets[target][offset]
        if not self.targets[target]:
            del self.targets[target]

    def commands(self) -> list[tuple[object, ...]]:
        return [
            ("TWRITE", target, "ENTRIES", *chain.from_iterable(messages.values()))
            for target, messages in self.targets.items()
        ]


class _Progress:
    """What was put back, in words."""

    def __init__(self, link: Link, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.done = 0
        self._link = link
        self._streams: Counter[bytes] = Counter()
        self._line = RewrittenLine()

    def add(self, plan: _Plan) -> None:
        for target, messages in plan.targets.items():
            self._streams[target] += len(messages)
        self.done = self._streams.total()
        for offset, why in plan.skipped:
            self._link.say(f"offset {offset} was skipped: {why}")
        self._line.show(f"{self.done:,} letters")

    def summary(self, stream: str) -> None:
        noun = "letter" if self.done == 1 else "letters"
        verb = "would be" if self.dry_run else "were" if self.done != 1 else "was"
        streams = ", ".join(f"'{_name(target)}' {count:,}" for target, count in sorted(self._streams.items()))
        self._line.end(f"{self.done:,} {noun} of '{stream}' {verb} put back{': ' if streams else ''}{streams}")
