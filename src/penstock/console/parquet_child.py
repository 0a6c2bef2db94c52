"""Rows from standard input as a Parquet file on standard output: `python -m penstock.console.parquet_child`.

A row is four numbers (offset, milliseconds, bytes of the tag, bytes of the entry), the tag and the entry. The columns
are those of `penstock history export`. Row groups are small, so that the file begins to leave early and little is held.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

ROW = "<qqII"
GROUP_BYTES = 8 << 20
GROUP_ROWS = 20_000


def rows(source: BinaryIO) -> Iterator[tuple[int, int, bytes, bytes]]:
    size = struct.calcsize(ROW)
    while len(head := source.read(size)) == size:
        offset, when, tag, entry = struct.unpack(ROW, head)
        yield offset, when, source.read(tag), source.read(entry)


def main(source: BinaryIO, sink: BinaryIO) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = pa.schema(
        [("offset", pa.int64()), ("time", pa.timestamp("ms", "UTC")), ("tag", pa.binary()), ("entry", pa.binary())]
    )
    with pq.ParquetWriter(sink, columns, compression="zstd") as writer:
        held: list[tuple[int, int, bytes, bytes]] = []
        size = 0

        def put() -> None:
            parts: list[Any] = list(zip(*held, strict=True)) or [[], [], [], []]
            arrays = [pa.array(part, column.type) for part, column in zip(parts, columns, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=columns))

        for row in rows(source):
            held.append(row)
            size += len(row[3])
            if len(held) >= GROUP_ROWS or size >= GROUP_BYTES:
                put()
                held, size = [], 0
        put()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
