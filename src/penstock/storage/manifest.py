"""The list of files that make up the log: one base, then increments in order. A text file, replaced atomically.

    #state on
    #own
    #feed 3f0c2d4b6a81950e7d2c4b6a81950e7d2c4b6a81 0
    file appendonly.aof.2.base.pns seq 2 type b
    file appendonly.aof.3.incr.aof seq 3 type i startoffset 70125
    file appendonly.aof.1.base.pns seq 1 type h

A file is part of the log if and only if it is listed here as b or i. So a file is made and synced before it is listed,
and removed only after a manifest that calls it history (h) is on disk: a crash at any instant leaves a manifest that
loads, and nothing is ever removed that a manifest did not name.

An increment says at which offset of the feed it begins, and the lines #feed are the lineage (lineage.py); a log of an
older version has neither. History with an offset is kept for replicas, which may have to read it.

A name is quoted if a word of the configuration file would have to be. Older versions quoted none.

The line #state says whether every change goes to this log, or it was turned off on purpose: log_or_snapshot.py goes by
it. The line #own says that its last feed is of the server that has it, and not of a leader that this server follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from penstock.engine.config_file import quoted
from penstock.protocol.grammar import split_inline
from penstock.storage.files import StorageError, replace_file
from penstock.storage.lineage import Lineage

_line = re.compile(r"""file ("(?:[^"\\]|\\.)*"|[^"\s]\S*) seq (\d+) type ([bih])(?: startoffset (\d+))?""").fullmatch
_feed = re.compile(r"#feed ([0-9a-f]{40}) (\d+)").fullmatch
_state = re.compile(r"#state (on|off)").fullmatch


class State(Enum):
    """Whether a log is the place of every change."""

    ON = "on"
    OFF = "off"  # CONFIG SET appendonly no: a start may leave it out
    UNKNOWN = ""  # an older version wrote the manifest


@dataclass(frozen=True, slots=True)
class Manifest:
    """The listed files, by name. Immutable: a change is a new one, written before it is used."""

    base: str = ""  # empty only while the log is being made
    increments: tuple[str, ...] = ()
    history: tuple[str, ...] = ()  # replaced by the base, to be removed
    last: int = 0  # the highest sequence number ever given out
    starts: Mapping[str, int] = field(default_factory=dict)  # of increments, kept ones too: where they are in the feed
    lineage: Lineage = field(default_factory=Lineage)
    state: State = State.UNKNOWN
    own: bool = False  # the lineage ends with a feed that this server began

    @property
    def names(self) -> tuple[str, ...]:
        return (self.base, *self.increments) if self.base else self.increments

    def write(self, path: Path) -> None:
        rows = [(self.base, "b")] if self.base else []
        rows += [(name, "i") for name in self.increments] + [(name, "h") for name in self.history]
        text = f"#state {self.state.value}\n" if self.state.value else ""
        text += "#own\n" if self.own else ""
        text += "".join(f"#feed {feed} {start}\n" for feed, start in self.lineage.feeds)
        for name, kind in rows:
            start = f" startoffset {self.starts[name]}" if name in self.starts else ""
            text += f"file {quoted(name)} seq {sequence_of(name)} type {kind}{start}\n"
        replace_file(path, lambda file: file.write(text.encode()))

    def repaired(self) -> Manifest:
        """The same files, after one of them was changed: it is no longer the log that replicas know."""
        return replace(self, starts={}, lineage=Lineage())

    def end(self, folder: Path) -> int:
        """The offset of the feed after the files that are in the folder. OSError if one is missing."""
        if not self.increments:
            return 0
        last = self.increments[-1]
        counted = self.increments if last not in self.starts else (last,)
        return self.starts.get(last, 0) + sum((folder / name).stat().st_size for name in counted)

    @property
    def kept(self) -> tuple[str, ...]:
        """Increments that the base has replaced, and replicas may still have to read; in order."""
        return tuple(name for name in self.history if name in self.starts)


def read(path: Path) -> Manifest:
    """The manifest at `path`; StorageError if a line of it cannot be understood."""
    base, last, offset = "", 0, 0
    increments: list[str] = []
    history: list[str] = []
    starts: dict[str, int] = {}
    feeds: list[tuple[str, int]] = []
    state, own = State.UNKNOWN, False
    for line in path.read_text("utf-8", "replace").splitlines(keepends=True):
        begin, offset = offset, offset + len(line.encode())
        if (feed := _feed(line.strip())) is not None:
            feeds.append((feed[1], int(feed[2])))
            continue
        if (mark := _state(line.strip())) is not None:
            state = State(mark[1])
            continue
        if line.strip() == "#own":
            own = True
            continue
        found = _line(line.strip())
        if found is None or not line.endswith("\n") or (found[3] == "b" and (base or increments)):
            raise StorageError(path, begin, f"this is no line of a manifest: {line.strip()!r}", "Restore the file")
        name = found[1] if found[1][0] != '"' else split_inline(found[1].encode())[0].decode("utf-8", "surrogateescape")
        if found[3] == "b":
            base = name
        else:
            (increments if found[3] == "i" else history).append(name)
        if found[4] is not None:
            starts[name] = int(found[4])
        last = max(last, int(found[2]))
    if not base:
        raise StorageError(path, 0, "the manifest lists no base", "Restore the file")
    return Manifest(base, tuple(increments), tuple(history), last, starts, Lineage(tuple(feeds)), state, own)


def base_name(prefix: str, sequence: int) -> str:
    return f"{prefix}.{sequence}.base.pns"


def increment_name(prefix: str, sequence: int) -> str:
    return f"{prefix}.{sequence}.incr.aof"


def sequence_of(name: str) -> int:
    """The sequence number in a file's name; 0 if it has none.

    >>> sequence_of("appendonly.aof.12.incr.aof")
    12
    """
    found = re.search(r"\.(\d+)\.(?:base\.pns|incr\.aof)\Z", name)
    return int(found[1]) if found else 0
