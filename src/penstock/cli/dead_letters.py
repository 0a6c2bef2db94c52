"""`penstock letters list` and `penstock letters replay`: dead letters from a terminal.

How letters are put back, once each, is in client/dead_letters.py. `penstock streams` shows how many letters are left as
the lag of the group that a replay moves. A message that is still bad becomes a new letter.

Rejected: producers' numbers (TWRITE ... PRODUCER), which a stream forgets when there are many, and removing letters,
which are evidence.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import typer

from penstock.cli.remote_server import URL, RemoteServer
from penstock.cli.terminal import RewrittenLine, ending_quietly, one_line, shown_bytes
from penstock.client import dead_letters
from penstock.client.dead_letters import AT_ONCE, MARKED, CannotPutBack, Command, Plan, Steps, position, read
from penstock.protocol.dead_letters import Letter, name_in_text

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
    server = RemoteServer(url, "letters")
    server.check()
    with ending_quietly():
        box = _LetterBox(server, stream)
        place, left = box.first if replayed else box.position(), count
        while left and (found := box.read(place, min(left, AT_ONCE))):
            for offset, _, raw in found:
                print(f"{offset}\t{_shown(raw)}", flush=True)
            place, left = found[-1][0] + 1, left - len(found)
        waiting = box.last + 1 - place
    if waiting > 0:
        server.say(f"{waiting:,} more; --count {count + waiting} shows them")


def _shown(raw: bytes) -> str:
    try:
        letter = Letter.decode(raw)
    except ValueError as error:
        return f"no letter ({error}): {shown_bytes(raw)}"
    place = "-" if letter.offset is None else letter.offset
    return f"{_name(letter.stream)} {place}\t{one_line(letter.why or 'given up')}\t{shown_bytes(letter.entry)}"


def _is_letter(raw: bytes) -> bool:
    try:
        Letter.decode(raw)
    except ValueError:
        return False
    return True


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
    server = RemoteServer(url, "letters")
    server.check()
    box = _LetterBox(server, stream, skip)
    progress = _Progress(server, dry_run)
    with ending_quietly():
        place = box.position()
        box.check_letters(place)
        try:
            while (count is None or progress.done < count) and place <= box.last:
                limit = AT_ONCE if count is None else min(AT_ONCE, count - progress.done)
                # A step may be repeated: it first asks how far letters were put back.
                place = server.patiently(partial(box.put_back, place, limit, progress))
        finally:
            progress.summary(stream)
    if progress.skipped and not progress.done:
        raise typer.Exit(1)


class _LetterBox:
    """A dead-letter stream, and how far its letters were put back."""

    def __init__(self, server: RemoteServer, stream: str, skip: bool = False) -> None:
        self._server = server
        self._skip = skip
        self._stream = stream
        self._key = os.fsencode(stream)
        (self.first, self.last), *_ = server.call("TREAD", self._key, 1, 0, "WITHINFO")
        if not self.last:
            server.fail(f"there is no stream '{stream}' at {server.place}, or nothing was written to it")

    def position(self) -> int:
        """The offset of the first letter that was not put back."""
        place: int = _run(position(self._key, self.first), self._server.call)
        return place

    def check_letters(self, place: int) -> None:
        """End the program, and change nothing, if no message of the stream is a letter."""
        if place > self.first:
            return  # letters were put back before
        seen = 0
        while found := self.read(place, AT_ONCE):
            if any(map(_is_letter, (raw for _, _, raw in found))):
                return
            seen, place = seen + len(found), found[-1][0] + 1
        if seen:
            noun = "message was left as it is" if seen == 1 else "messages were left as they are"
            self._server.fail(f"'{one_line(self._stream)}' holds no dead letters: {seen:,} {noun}")

    def read(self, place: int, count: int) -> list[tuple[int, bytes, bytes]]:
        """The next letters: offset, tag, entry. Letters that compaction removed are left out."""
        return [tuple(message) for message in _run(read(self._key, place, self.last, count), self._server.call)]

    def put_back(self, place: int, limit: int, progress: _Progress) -> int:
        """Put the next letters back, from `place` or from where another replay is by now; answer where to continue."""
        made: list[Plan] = []

        def commands(call: Call) -> list[Command]:
            steps = dead_letters.replay(self._key, place, (self.first, self.last), limit, self._skip)
            try:
                made.append(_run(steps, call))
            except CannotPutBack as error:
                self._server.fail(
                    f"{one_line(str(error))}. The letters from offset {error.place} on were not put back; --skip "
                    "passes over such letters"
                )
            return made[-1].commands()

        if progress.dry_run:
            commands(self._server.call)
        elif self._server.change(self._key, commands) is None:
            return place  # the stream changed in between: look again
        progress.add(made[-1])
        return made[-1].end


def _run(steps: Steps, call: Call) -> Any:
    """Run the commands that a generator yields; what it returns."""
    reply: Any = None
    while True:
        try:
            words = steps.send(reply)
        except StopIteration as end:
            return end.value
        reply = call(*words)


class _Progress:
    """Describes what was put back."""

    def __init__(self, server: RemoteServer, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.done = self.skipped = 0
        self._server = server
        self._streams: Counter[bytes] = Counter()
        self._line = RewrittenLine()

    def add(self, plan: Plan) -> None:
        for target, messages in plan.targets.items():
            self._streams[target] += len(messages)
        self.done = self._streams.total()
        for offset, why in plan.skipped:
            self.skipped += why != MARKED
            self._server.say(f"offset {offset} was skipped: {one_line(why)}")
        self._line.show(f"{self.done:,} letters")

    def summary(self, stream: str) -> None:
        noun = "letter" if self.done == 1 else "letters"
        verb = "would be" if self.dry_run else "were" if self.done != 1 else "was"
        streams = ", ".join(f"'{_name(target)}' {count:,}" for target, count in sorted(self._streams.items()))
        self._line.end(f"{self.done:,} {noun} of '{stream}' {verb} put back{': ' if streams else ''}{streams}")
