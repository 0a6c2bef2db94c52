"""`penstock schema infer`, `show` and `versions`: the schema of a stream, from a terminal.

`infer` proposes and prints; only `--set` changes something. The sample is taken in parts from all over the stream,
because entries of one hour are often alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import typer

from penstock.cli.remote_server import STREAM, URL, RemoteServer
from penstock.cli.terminal import one_line
from penstock.schema.fields import InvalidSchema, Schema
from penstock.schema.inference import Proposal, infer
from penstock.schema.parser import parse
from penstock.schema.widening import merged

_PARTS = 10
"""Places of the stream from which a sample is taken."""
_AT_ONCE = 1000

schema = typer.Typer(
    name="schema", help="Propose a schema for a stream from its entries, and show the one it has.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    app.add_typer(schema)


@schema.command("infer")
def infer_schema(
    stream: str = STREAM,
    sample: int = typer.Option(1000, "--sample", min=1, help="Look at so many entries, from all over the stream."),
    is_set: bool = typer.Option(False, "--set", help="Give the stream this schema, or widen the one it has."),
    url: str = URL,
) -> None:
    """Propose a schema from a sample of a stream's entries, and print the command that sets it.

    A field is NOT NULL if all entries of the sample have it. If the stream has a schema, the proposal widens it. CHECK
    is left as it is: TSCHEMA SET ... CHECK refuse has the server refuse entries that do not fit.
    """
    server = RemoteServer(url, "schema")
    server.check()
    first, last = _bounds(server, stream)
    known = _known(server, stream)
    proposal = infer(_sample(server, stream, first, last, sample), known)
    _tell(server, proposal, last - first + 1)
    if proposal.schema is None:
        server.fail(
            f"no field was found in {proposal.entries + len(proposal.refused):,} entries of '{one_line(stream)}'"
        )
    fields = str(_widened(server, stream, known, proposal.schema))
    print(f"TSCHEMA SET {_quoted(stream)} {_quoted(fields)}")
    if is_set:
        server.say(
            f"version {server.call('TSCHEMA', 'SET', stream, fields)} of the schema of '{one_line(stream)}' is set"
        )


@schema.command("show")
def show(
    stream: str = STREAM,
    version: int = typer.Option(None, "--version", min=1, help="A version of it instead of the newest."),
    url: str = URL,
) -> None:
    """Print the schema of a stream, a field on each line, and what happens to entries that do not fit."""
    server = RemoteServer(url, "schema")
    server.check()
    found = server.call("TSCHEMA", "GET", stream, *([version] if version else []))
    if found is None:
        _fail_without(server, stream, f"version {version} of a schema" if version else _NO_SCHEMA)
    check = found[b"check"].decode()
    letters = f" {one_line(found[b'deadletter'].decode(errors='replace'))}" if found[b"deadletter"] else ""
    print(f"version {found[b'version']}, since offset {found[b'since']}, CHECK {check}{letters}")
    for field in parse(found[b"fields"].decode()).fields:
        print(f"  {one_line(str(field))}")


@schema.command("versions")
def versions(stream: str = STREAM, url: str = URL) -> None:
    """List the versions of a stream's schema, oldest first: number, first offset, fields."""
    server = RemoteServer(url, "schema")
    server.check()
    found = server.call("TSCHEMA", "VERSIONS", stream)
    if not found:
        _fail_without(server, stream, _NO_SCHEMA)
    for each in found:
        print(f"{each[b'version']}\t{each[b'since']}\t{one_line(each[b'fields'].decode())}")


_NO_SCHEMA = "schema; `penstock schema infer` proposes one"


def _fail_without(server: RemoteServer, stream: str, what: str) -> NoReturn:
    if not server.is_written(stream):
        server.fail(f"there is no stream '{one_line(stream)}' at {server.place}, or nothing was written to it")
    server.fail(f"the stream '{one_line(stream)}' has no {what}")


def _bounds(server: RemoteServer, stream: str) -> tuple[int, int]:
    (first, last), *_ = server.call("TREAD", stream, 1, 0, "WITHINFO")
    if last < first:
        server.fail(f"the stream '{one_line(stream)}' has no messages to look at")
    return first, last


def _sample(server: RemoteServer, stream: str, first: int, last: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Messages in parts that are spread over the stream; all of them if it has no more."""
    parts = _PARTS if last - first + 1 > count >= _PARTS else 1
    size = min(-(-count // parts), last - first + 1)
    room = last - first + 1 - size  # between the first place where a part can begin and the last one
    for part in range(parts):
        at = first + (room * part // (parts - 1) if parts > 1 else 0)
        for start in range(at, at + size, _AT_ONCE):
            for message in server.call("TREAD", stream, start, min(_AT_ONCE, at + size - start)):
                if message is not None:
                    yield message[0], message[2]


def _tell(server: RemoteServer, proposal: Proposal, there_are: int) -> None:
    seen = proposal.entries + len(proposal.refused)
    server.say(f"looked at {seen:,} of {there_are:,} messages")
    if proposal.refused:
        offset, why = next(iter(proposal.refused.items()))
        server.say(f"{len(proposal.refused):,} of them would not fit, the first at offset {offset}: {one_line(why)}")
    for name, why in proposal.left_out.items():
        server.say(f"left out the field {one_line(name)}: {one_line(why)}")


def _known(server: RemoteServer, stream: str) -> Schema | None:
    """The schema that the stream has."""
    found: Any = server.call("TSCHEMA", "GET", stream)
    return parse(found[b"fields"].decode()) if found is not None else None


def _widened(server: RemoteServer, stream: str, known: Schema | None, proposed: Schema) -> Schema:
    """The proposal, as a version that may follow the schema that the stream has."""
    if known is None:
        return proposed
    try:
        return merged(known, proposed)
    except InvalidSchema as error:
        server.fail(f"the sample does not fit the schema that '{one_line(stream)}' has, not even a wider one: {error}")


def _quoted(text: str) -> str:
    """An argument as redis-cli reads it."""
    if text and all(character.isprintable() and character not in " \"'\\" for character in text):
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))
