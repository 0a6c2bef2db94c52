"""A notebook: cells in a Jupyter kernel, whose main thread runs an event loop."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from penstock import Server

CELLS = [
    """
import penstock
import penstock.spark
from penstock import aio
spark = penstock.spark.builder("notebook").master("local[2]").getOrCreate()
client = penstock.Client.from_url(URL)
client.twrite_many("orders", [("ada", '{"item": "tea", "price": 3}'), ("bob", '{"item": "jam", "price": 4}')])
""",
    """
source = spark.read.format("penstock").option("url", URL).option("stream", "orders")
source.schema("offset long, item string, price int").load().toPandas()
""",
    """
seen = []
query = (
    spark.readStream.format("penstock").schema("item string").option("url", URL).option("stream", "orders").load()
    .writeStream.option("checkpointLocation", FOLDER)
    .foreachBatch(lambda rows, number: seen.extend(row.item for row in rows.collect()))
    .trigger(availableNow=True).start()
)
query.awaitTermination()
sorted(seen)
""",
    """
async with aio.Client.from_url(URL) as tasks:
    total = await tasks.incr("visits")
total
""",
    "spark.stop(); client.close()",
]


@pytest.mark.timeout(1200)
def test_a_notebook_reads_streams_in_batches_and_continuously(ours: Server, tmp_path: Path) -> None:
    start = f"URL, FOLDER = {ours.url!r}, {str(tmp_path / 'checkpoint')!r}"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in [start, *CELLS]])
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [output.data["text/plain"] for cell in notebook.cells for output in cell.outputs if "data" in output]
    assert shown[0] == "1"
    assert "tea" in shown[1] and "jam" in shown[1]
    assert shown[2] == "['jam', 'tea']"
    assert shown[3] == "1"
