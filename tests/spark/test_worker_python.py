"""Spark's Python workers take the PySpark that is installed, not a zip of its sources, and import little themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.support.spark.process_tree import command_of

from penstock.spark.worker_python import use_worker_python, worker_python


def path_of(python: str, given: str) -> list[str]:
    words = [python, "-c", "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='\\n')", "a b", "$c"]
    return subprocess.run(words, env={"PYTHONPATH": given}, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    def where(_: object) -> str:
        import pyspark.worker

        return str(pyspark.worker.__file__)

    (found,) = spark.sparkContext.parallelize([0], 1).map(where).collect()
    assert Path(found).parent == Path(pyspark.__file__).parent


def test_workers_are_forked_from_our_daemon_which_is_forked_from_the_server(spark: SparkSession) -> None:
    def ancestors(_: object) -> list[int]:
        import psutil

        return [each.pid for each in psutil.Process().parents()]

    (found,) = spark.sparkContext.parallelize([0], 1).map(ancestors).collect()
    (java,) = (each for each in psutil.Process().children() if each.name() == "java")
    starts = [command_of(each)[-3:] for each in java.children()]
    assert ["-m", "penstock.spark.worker_daemon", "pyspark.worker"] in starts  # one for each environment of tasks
    _daemon, server, driver, *_ = found
    assert psutil.Process(server).cmdline()[-3:-1] == ["-m", "penstock.spark.fork_server"]
    assert driver == os.getpid()


PRELOAD = """
import os, sys
import psutil
from penstock.spark.worker_daemon import preload
preload(sys.argv[1])
print(psutil.Process().num_threads(), *sys.modules)
"""


@pytest.mark.parametrize("threads", ["1", "8", None])
@pytest.mark.parametrize("kind", ["worker", "sql.worker.write_into_data_source", "sql.worker.lookup_data_sources"])
def test_a_daemon_has_one_thread_when_it_forks(kind: str, threads: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"OMP_NUM_THREADS": threads} if threads else {}
    ran = subprocess.run(
        [sys.executable, "-c", PRELOAD, f"pyspark.{kind}"], env=environment, capture_output=True, text=True, check=True
    )
    count, *modules = ran.stdout.split()
    assert count == "1", "a lock that another thread holds would stay locked in the workers"
    assert f"pyspark.{kind}" in modules
    assert ("penstock.client.api.sync" in modules) == ("lookup" not in kind), "a worker would have to import it"
    assert ("pyarrow" in modules) == ("lookup" not in kind and threads == "1")
    assert "pandas" not in modules, "a daemon would start later for workers that do not need it"


RANDOM = """
import os
import numpy
from penstock.spark.worker_daemon import ready_to_fork
numpy.random.random()
ready_to_fork()
for _ in range(2):
    if os.fork() == 0:
        os.write(1, b"%r\\n" % numpy.random.random())
        os._exit(0)
    os.wait()
"""


def test_forked_workers_have_random_numbers_of_their_own() -> None:
    ran = subprocess.run([sys.executable, "-c", RANDOM], capture_output=True, text=True, check=True)
    assert len(set(ran.stdout.split())) == 2


READ = """
import sys
import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType
from penstock.spark.options import parse
from penstock.spark.rows import Converter
from penstock.spark.sink import _tags

def column(kind, text, count):
    table = b"".join((len(text) * place).to_bytes(4, sys.byteorder) for place in range(count + 1))
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(table), pa.py_buffer(text * count)], 0)

columns = {"tag": column(pa.binary(), b"t", 3), "entry": column(pa.binary(), b'{"n": 1}', 3)}
batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
schema = StructType().add("stream", StringType()).add("tag", StringType())
schema = schema.add("entry", BinaryType()).add("n", IntegerType())
rows = Converter(schema, parse({"stream": "in"})).convert("in", batch)
print(rows.to_pylist()[2], _tags(batch)[2].as_py(), _tags(batch.drop_columns(["tag"]))[2].as_py())
assert "pandas" not in sys.modules, "0.2 s of CPU in each worker"
"""


def test_pandas_is_not_imported_for_rows() -> None:
    ran = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == """{'stream': 'in', 'tag': 't', 'entry': b'{"n": 1}', 'n': 1} b't' b''\n"""


def test_processes_that_plan_start_as_those_of_tasks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(variable, sys.executable)
    use_worker_python()
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == worker_python() != sys.executable


def test_only_the_zips_leave_the_path() -> None:
    given = "/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9.9-src.zip:/my code:/spark/jars/core.jar"
    assert path_of(worker_python(), given) == ["/my code:/spark/jars/core.jar", "a b", "$c", ""]


def test_another_spark_keeps_its_own_zip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python() == sys.executable


def test_without_a_cache_workers_start_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert worker_python() == sys.executable
    assert "will start slowly" in caplog.text
