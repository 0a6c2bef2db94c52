"""Projects for tests to run, and what goes into their streams and comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

HEAD = (
    "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession\n\nspark = SparkSession.active()\n\n\n"
)
SPEC = "name: test\nstorage: .penstock/storage\nlibraries:\n  - glob:\n      include: flows/**\n"


def project(folder: Path, *texts: str) -> Path:
    (folder / "flows").mkdir(parents=True)
    (folder / "spark-pipeline.yml").write_text(SPEC)
    for number, text in enumerate(texts):
        is_sql = text.startswith("CREATE")
        (folder / "flows" / f"{number}.{'sql' if is_sql else 'py'}").write_text(text if is_sql else HEAD + text)
    return folder


def write(client: Any, first: int) -> None:
    words = (word for number in range(first, first + 100) for word in ("tag", f"{number:06}"))
    client.execute_command("TWRITE", "in", "ENTRIES", *words)


def entries(client: Any, stream: str) -> list[bytes]:
    return [message[2] for message in client.execute_command("TREAD", stream, 1, 1_000_000)]
