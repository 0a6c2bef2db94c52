"""Lists, sets and sorted sets as tables: a row for each element, with the key it is in.

They are only read. A row of a list has no identity, so a task that runs again would push it twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql.types import BinaryType, DoubleType, LongType, StringType, StructType

from penstock.spark.key_servers import KeyServers
from penstock.spark.keys import KeyReader
from penstock.spark.options import OptionError, Options

KEYS_A_READ = 100
_COMMANDS: dict[str, tuple[tuple[str, ...], str, tuple[Any, ...]]] = {
    "list": (("index",), "LRANGE", (0, -1)),
    "set": ((), "SMEMBERS", ()),
    "zset": (("score",), "ZRANGE", (0, -1, "WITHSCORES")),
}
"""Of each type: the columns that an element has beside key and value, and the command that reads all elements."""
_KINDS = {"index": LongType(), "score": DoubleType()}


def element_schema(options: Options) -> StructType:
    """The columns of elements, if the query names none."""
    schema = StructType().add(options.keyColumn, StringType(), nullable=options.badEntries == "null")
    for name in _COMMANDS[options.type][0]:
        schema.add(name, _KINDS[name])
    return schema.add(options.valueColumn, StringType() if options.text else BinaryType())


class ElementReader(KeyReader):
    """`spark.read.format("penstock").option("type", "list").option("keys", "queue:*")`."""

    keys_a_read = KEYS_A_READ

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        there_are = element_schema(options).names
        if unknown := [name for name in schema.names if name not in there_are]:
            raise OptionError(
                f"columns {', '.join(unknown)} in the schema: an element of a {options.type} has {', '.join(there_are)}"
            )

    def rows(self, servers: KeyServers, keys: Sequence[bytes], fields: Sequence[str]) -> list[tuple[Any, ...]]:
        _, command, words = _COMMANDS[self._options.type]
        replies = servers.run([(command, key, *words) for key in keys])
        return [
            (key, *(element[name] for name in fields))
            for key, reply in zip(keys, replies, strict=True)
            for element in self._elements(reply)
        ]

    def _elements(self, reply: Any) -> list[dict[str, Any]]:
        value = self._options.valueColumn
        if self._options.type == "zset":
            is_nested = bool(reply) and isinstance(reply[0], list)  # in RESP3, which clients of clusters speak
            pairs = reply if is_nested else zip(reply[::2], reply[1::2], strict=True)
            return [{value: member, "score": _as_text(score)} for member, score in pairs]
        return [{value: element, "index": b"%d" % at} for at, element in enumerate(reply)]


def _as_text(score: bytes | float) -> bytes:
    return score if isinstance(score, bytes) else repr(score).encode()
