"""The catalog of a project: which tables there are, kept in one small file of JSON.

Spark has two catalogs. The one in memory forgets its tables, and the next run would find their files in the way.
Hive's, on a database of Derby, takes six seconds of CPU to open, which was a quarter of the time until the first rows.
So a project has the one in memory: its tables are read from the file when Spark starts, and every change is written to
the file before the statement that makes it returns.

A table is entered when it is still empty, so a process that dies before the file is written leaves an empty folder,
which Spark takes for the table when it creates it again. The file is replaced as a whole. Paths within the project's
folder are relative in it, so nothing has to be changed when a project is moved or copied.

Rejected: text of SQL (SHOW CREATE TABLE), which would have to be parsed and analysed at each start; Java's
serialization, which another version of Spark could not read. See docs/design/0022-start.md.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started

IMPLEMENTATION = "spark.sql.catalogImplementation"
FORMAT = 1
"""The version of the file."""
_OF_HIVE = ("spark.sql.hive.", "spark.hadoop.hive.", "spark.hive.", "spark.hadoop.javax.jdo.")
"""Settings of a metastore of Hive."""


class CatalogNotKept(RuntimeError):
    """The file could not be written: the next start would not know the new tables."""


def settings(configuration: Mapping[str, str], metastore: Path) -> dict[str, str]:
    """Which catalog a Spark has. One that has a metastore of Hive keeps it, as projects of earlier versions do."""
    if metastore.is_dir() or any(name.startswith(_OF_HIVE) for name in configuration):
        return {IMPLEMENTATION: "hive"}
    # Partitions are found in the folders of a table; Spark would look for them in the catalog.
    return {IMPLEMENTATION: "in-memory", "spark.sql.hive.manageFilesourcePartitions": "false"}


class CatalogFile:
    """Keeps the catalog of a JVM in a file. Spark calls `onEvent` in threads of its own; a lock is around all of it."""

    class Java:
        implements = ("org.apache.spark.sql.catalyst.catalog.ExternalCatalogEventListener",)

    def __init__(self, file: Path, gateway: Any, shared_state: Any) -> None:
        self._file = file
        self._jvm = gateway.jvm
        self._folder = f"{self._jvm.org.apache.hadoop.fs.Path(f'file:{file.parent}').toUri()}/"  # as Spark quotes it
        self._catalog = shared_state.externalCatalog()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._databases: dict[str, Any] = {}
        self._tables: dict[str, dict[str, Any]] = {}
        self._read()
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        self._catalog.addListener(self)

    def check(self) -> None:
        """Raise CatalogNotKept if the file lacks a change of the catalog."""
        if self._failure is not None:
            raise CatalogNotKept(
                f"{self._file} could not be written, so the next run would not know the tables that this one made: "
                f"{self._failure}"
            ) from self._failure

    def onEvent(self, event: Any) -> None:
        """Spark has changed the catalog, or is about to."""
        kind = event.getClass().getSimpleName()
        if kind.endswith("PreEvent") or not kind.endswith(("TableEvent", "DatabaseEvent")):
            return
        with self._lock:
            try:
                if kind.endswith("DatabaseEvent"):
                    self._note_database(event.database())
                else:
                    names = [event.name(), *([event.newName()] if kind == "RenameTableEvent" else [])]
                    for name in names:
                        self._note_table(event.database(), name)
                self._write()
                self._failure = None
            except Exception as error:  # Spark would only log it
                self._failure = error

    def _note_database(self, name: str) -> None:
        if self._catalog.databaseExists(name):
            self._databases[name] = self._of_database(self._catalog.getDatabase(name))
        else:
            self._databases.pop(name, None)
            self._tables.pop(name, None)

    def _note_table(self, database: str, name: str) -> None:
        tables = self._tables.setdefault(database, {})
        if self._catalog.tableExists(database, name):
            tables[name] = self._of_table(self._catalog.getTable(database, name))
        else:
            tables.pop(name, None)

    def _write(self) -> None:
        fresh = self._file.with_suffix(f".{os.getpid()}")
        content = {"format": FORMAT, "databases": self._databases, "tables": self._tables}
        with fresh.open("w", encoding="utf-8") as opened:
            json.dump(content, opened, indent=1, sort_keys=True)
            opened.flush()
            os.fsync(opened.fileno())
        fresh.replace(self._file)

    def _read(self) -> None:
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        if content["format"] != FORMAT:
            raise CatalogNotKept(f"{self._file} is of another version of Penstock; run the project with that one")
        self._databases, self._tables = content["databases"], content["tables"]
        for name, database in self._databases.items():
            self._catalog.createDatabase(self._database(name, database), True)
        for database, tables in self._tables.items():
            for name, table in tables.items():
                self._catalog.createTable(self._table(database, name, table), False)

    # Objects of Spark as JSON. What is missing here, statistics for example, is computed anew by Spark.

    def _of_database(self, database: Any) -> dict[str, Any]:
        return {
            "description": database.description(),
            "location": self._relative(database.locationUri().toString()),
            "properties": self._dict(database.properties()),
        }

    def _of_table(self, table: Any) -> dict[str, Any]:
        storage, buckets = table.storage(), table.bucketSpec()
        properties = self._dict(storage.properties())
        if "path" in properties:
            properties["path"] = self._relative(properties["path"])
        location = storage.locationUri()
        return {
            "catalog": _optional(table.identifier().catalog()),
            "type": table.tableType().name(),
            "location": self._relative(location.get().toString()) if location.isDefined() else None,
            "inputFormat": _optional(storage.inputFormat()),
            "outputFormat": _optional(storage.outputFormat()),
            "serde": _optional(storage.serde()),
            "compressed": storage.compressed(),
            "storage": properties,
            "schema": json.loads(table.schema().json()),
            "provider": _optional(table.provider()),
            "partitions": self._list(table.partitionColumnNames()),
            "buckets": [
                buckets.get().numBuckets(),
                self._list(buckets.get().bucketColumnNames()),
                self._list(buckets.get().sortColumnNames()),
            ]
            if buckets.isDefined()
            else None,
            "owner": table.owner(),
            "created": table.createTime(),
            "createdBy": table.createVersion(),
            "properties": self._dict(table.properties()),
            "view": _optional(table.viewText()),
            "viewAsWritten": _optional(table.viewOriginalText()),
            "comment": _optional(table.comment()),
            "collation": _optional(table.collation()),
        }

    def _database(self, name: str, database: dict[str, Any]) -> Any:
        location = self._uri(database["location"])
        kind = self._jvm.org.apache.spark.sql.catalyst.catalog.CatalogDatabase
        return kind(name, database["description"], location, self._map(database["properties"]))

    def _table(self, database: str, name: str, table: dict[str, Any]) -> Any:
        catalyst, option = self._jvm.org.apache.spark.sql.catalyst, self._jvm.scala.Option.apply
        properties = dict(table["storage"])
        if "path" in properties:
            properties["path"] = self._uri(properties["path"]).toString()
        storage = catalyst.catalog.CatalogStorageFormat(
            option(self._uri(table["location"]) if table["location"] is not None else None),
            option(table["inputFormat"]), option(table["outputFormat"]), option(table["serde"]),
            table["compressed"], self._map(properties), option(None),
        )  # fmt: skip
        buckets = table["buckets"] and catalyst.catalog.BucketSpec(
            table["buckets"][0], self._seq(table["buckets"][1]), self._seq(table["buckets"][2])
        )
        long = self._jvm.java.lang.Long.parseLong
        return catalyst.catalog.CatalogTable(
            catalyst.TableIdentifier(name, option(database), option(table["catalog"])),
            catalyst.catalog.CatalogTableType(table["type"]), storage,
            self._jvm.org.apache.spark.sql.types.DataType.fromJson(json.dumps(table["schema"])),
            option(table["provider"]), self._seq(table["partitions"]), option(buckets), table["owner"],
            long(str(table["created"])), long("-1"), table["createdBy"], self._map(table["properties"]), option(None),
            option(table["view"]), option(table["comment"]), option(table["collation"]), self._seq([]), False, True,
            self._map({}), option(table["viewAsWritten"]), option(None),
        )  # fmt: skip

    def _relative(self, uri: str) -> str:
        """The URI of a file below our folder as a relative path, still quoted as in the URI."""
        plain = uri.replace("file:///", "file:/", 1)
        return plain.removeprefix(self._folder) if plain.startswith(self._folder) else uri

    def _uri(self, location: str) -> Any:
        is_absolute = location.startswith("/") or re.match(r"[A-Za-z][\w+.-]*:", location)
        return self._jvm.java.net.URI(location if is_absolute else self._folder + location)

    def _dict(self, scala_map: Any) -> dict[str, str]:
        return dict(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala_map))

    def _list(self, scala_seq: Any) -> list[str]:
        return list(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala_seq))

    def _map(self, pairs: Mapping[str, str]) -> Any:
        return self._jvm.PythonUtils.toScalaMap(dict(pairs))

    def _seq(self, values: list[str]) -> Any:
        return self._jvm.PythonUtils.toSeq(values)


def _optional(option: Any) -> Any:
    return option.get() if option.isDefined() else None
