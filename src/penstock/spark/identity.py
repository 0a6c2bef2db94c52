"""New identities for the flows of a copied project, so that the server does not take the copy for the original.

The server knows a flow into a stream by the id of its query, which is in the checkpoint, and takes each batch of an id
once. A copy has the ids of the original: of two batches with one number the server would take the first and leave out
the second, though it has other rows.

The batch that was under way when the copy was made may have been committed already: Spark notes that in the checkpoint
only afterwards. So the server is asked, and if it has that batch under the old id it is told that it has it under the
new one. A new identity therefore loses nothing and doubles nothing, also where none was needed.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import redis

from penstock.spark.options import parse
from penstock.spark.stream_connection import GUARD, StreamConnection

_NO_ROWS = pa.schema([("tag", pa.binary()), ("entry", pa.binary())])


def renew_identities(checkpoints: Iterable[Path], url: str) -> None:
    """Give the query of each checkpoint a new id."""
    with StreamConnection(parse({"url": url, "stream": "any"})) as connection:
        for checkpoint in checkpoints:
            file = checkpoint / "metadata"
            content = json.loads(file.read_text(encoding="utf-8"))
            before, after = content["id"], str(uuid.uuid4())
            batch = under_way(checkpoint)
            if batch is not None:
                _copy_guard(connection, before, after, batch)
                for stream in set(_streams(connection)):
                    if _has(connection, stream, before, batch):
                        _note(connection, stream, after, batch)
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop would compare
            fresh = file.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(content | {"id": after}), encoding="utf-8")
            fresh.replace(file)


def _streams(connection: StreamConnection) -> Iterator[bytes]:
    cursor: bytes | int = 0
    while True:
        cursor, names = connection.call("SCAN", cursor, "COUNT", 1000, "TYPE", "tstream")
        yield from names
        if int(cursor) == 0:
            return


def under_way(checkpoint: Path) -> int | None:
    """The number of a batch that was begun, and of which Spark has not noted that it was done."""
    begun, done = (
        max((int(file.name) for file in (checkpoint / kind).glob("*") if file.name.isdecimal()), default=-1)
        for kind in ("offsets", "commits")
    )
    return begun if begun > done else None


def _copy_guard(connection: StreamConnection, before: str, after: str, batch: int) -> None:
    """Note the batch under the new id in the guard of counters, if it is noted under the old one."""
    counted = connection.call("GET", GUARD + before)
    if counted is not None and int(counted) >= batch:
        connection.call("SET", GUARD + after, batch)


def _has(connection: StreamConnection, stream: bytes, producer: str, batch: int) -> bool:
    """Whether a batch was committed to a stream.

    Nothing is staged under the token, so nothing can be committed here.
    """
    try:
        connection.call("TCOMMIT", stream, producer, batch, f"{producer}/{uuid.uuid4()}")
    except redis.ResponseError as error:
        return str(error).startswith("FENCED")  # a later one was
    return True


def _note(connection: StreamConnection, stream: bytes, producer: str, batch: int) -> None:
    """Have the server remember a batch without rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _NO_ROWS) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array([], pa.binary())] * 2, schema=_NO_ROWS))
    token = f"{producer}/{uuid.uuid4()}"
    connection.call(
        "TSTAGE", stream, token, "ARROW", sink.getvalue().to_pybytes()
    )  # staged twice, it still has no rows
    connection.call("TCOMMIT", stream, producer, batch, token)
