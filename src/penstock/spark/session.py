"""A Spark session for a project: Java, Python, catalog and places for files are set, so that no user has to.

Declarative pipelines speak Spark Connect, so a session here is two: the classic one, which owns the JVM and shows what
runs in it, and a client of the Connect server inside that JVM, which the project's files get. The server listens on
127.0.0.1, on a port that the system chooses, and takes only clients with a token made for this start.

Everything the JVM says goes to a file, since hundreds of lines of it would bury
the one line that matters.

The JVM ends with this process, however that ends: it reads a pipe that we hold.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from penstock.spark import catalog_file, class_archive, local_files
from penstock.spark.catalog_file import IMPLEMENTATION, CatalogFile
from penstock.spark.class_archive import JAVA_OPTIONS
from penstock.spark.java import set_java_home
from penstock.spark.worker_python import use_worker_python

SECONDS_TO_END = 30
CATALOG, WAREHOUSE = "catalog.json", "warehouse"
"""Which tables there are, and the folder of their files."""
METASTORE = "metastore"
"""The folder of Hive's catalog, which projects of earlier versions have."""


class SparkDidNotStart(RuntimeError):
    """The JVM ended before Spark was there; names the file that says why."""


def prepare(folder: Path) -> None:
    """Set what Spark takes from the environment: its Java, and this very Python for its workers."""
    set_java_home(folder)
    use_worker_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if os.environ.get("LC_ALL") in ("C", "POSIX"):
        # Java would take the names of files for ASCII. If it is LANG that says so, Python does the same as we do here.
        os.environ["LC_ALL"] = "C.UTF-8"


def _java_option(name: str, path: Path) -> str:
    r"""A property for the command line of Java, as Spark's launcher reads it.

    >>> print(_java_option("a.b", Path('/my "own"/x')))
    -Da.b="/my \"own\"/x"
    """
    quoted = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'-D{name}="{quoted}"'


def _is_plain(path: Path) -> bool:
    """Whether a path is the same in a URI."""
    return path.as_uri() == f"file://{path}"


def settings(folder: Path) -> dict[str, str]:
    """What a session in `folder` goes by, unless the project says otherwise."""
    return {
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "tmp"),
        "spark.sql.warehouse.dir": str(folder / WAREHOUSE),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / METASTORE};create=true",
        "spark.driver.extraJavaOptions": " ".join(
            [
                _java_option("derby.stream.error.file", folder / "derby.log"),
                _java_option("java.io.tmpdir", folder / "tmp"),
            ]
        ),
        # Spark would try a flow again whatever failed; runner.py does so only if another attempt may succeed.
        "spark.sql.pipelines.maxFlowRetryAttempts": "0",
        # Spark forgets a client that asks nothing for an hour, and queries that stay need not ask.
        "spark.connect.session.manager.defaultSessionTimeout": "36500d",
        # The default of 200 is for clusters: with a few cores most of the time would go into empty tasks.
        "spark.sql.shuffle.partitions": str(max(os.cpu_count() or 1, 2)),
    }


def _quick_java(configuration: Mapping[str, str]) -> list[str]:
    """Options for a JVM that is to be there soon, rather than to compute much: most of a pipeline's work is in Python.

    The better of Java's two compilers takes a third of the CPU time of a start. Java refuses to start with two
    collectors, so one that the user chose stays.
    """
    said = [configuration.get("spark.driver.extraJavaOptions", "")]
    said += [os.environ.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS")]
    has_collector = re.search(r"-XX:\+Use\w+GC\b", " ".join(said))
    return ["-XX:TieredStopAtLevel=1", *([] if has_collector else ["-XX:+UseSerialGC"])]


def _reason(log: Path) -> str:
    """The line of a log that says why a start failed: the first exception, or else the first that complains, or the
    last.
    """
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    for complaint in (r"^[\w.$]+(?:Exception|Error): ", r"^(?!at ).*(?:\bError\b|Exception\b)"):
        if found := next((line for line in lines if re.search(complaint, line)), None):
            return found
    return lines[-1] if lines else "Java said nothing"


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """SparkContext takes Ctrl-C for itself, and cancels what runs. What Ctrl-C means is for the program to say."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _signals_held() -> Iterator[list[int]]:
    """Note signals instead of acting on them.

    A program that is interrupted while Java starts does not know the process yet, and it, finding no one to talk to,
    would stay for ever.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda given, frame: came.append(given)) for number in numbers}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Session:
    """A JVM with Spark in it. `spark` is what projects use, `classic` looks behind it."""

    def __init__(self, folder: Path, name: str, configuration: Mapping[str, str]) -> None:
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder)
        self.log = folder / "spark.log"
        self._temporary = folder / "tmp"
        self._names: dict[Path, Path] = {}  # other names of folders
        self._temporary.mkdir(exist_ok=True)
        os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = str(uuid.uuid4())
        chosen = {**settings(folder), **catalog_file.settings(configuration, folder / METASTORE), **configuration}
        chosen |= local_files.settings(chosen)
        self._start = class_archive.Start()
        if JAVA_OPTIONS not in configuration:
            self._start = class_archive.start_for(chosen)
            chosen[JAVA_OPTIONS] = " ".join([*_quick_java(chosen), self._start.option])
        conf = SparkConf().setAppName(name).setAll(
            list({
                **chosen,
                "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": "0",
                # A session with artifacts of its own has Python workers of its own, and every run is a session: with
                # isolation each run would leave a handful of idle processes behind, and start cold.
                "spark.sql.artifact.isolation.enabled": "false",
            }.items())
        )  # fmt: skip
        with self.log.open("wb") as log, _signals_held() as signals:
            try:
                self._gateway: Any = launch_gateway(conf, self._popen_words(log))  # type: ignore[no-untyped-call]
            except PySparkRuntimeError:
                self._remove_temporary()
                raise SparkDidNotStart(f"Spark did not start: {_reason(self.log)} ({self.log} has all of it)") from None
            finally:
                if self._start.lock is not None:
                    self._start.lock.close()
        self._process: subprocess.Popen[bytes] = self._gateway.proc
        try:
            for number in signals:
                signal.raise_signal(number)
            with _handlers_kept():
                self._context = SparkContext(gateway=self._gateway, conf=conf)
            self.classic = SparkSession(self._context)
            self._catalog = self._keep_catalog(folder) if chosen[IMPLEMENTATION] == "in-memory" else None
            self.spark: Any = self._connect()
        except Py4JError as error:
            self._end_java()
            raise SparkDidNotStart(f"Spark did not start: {_reason(self.log)} ({self.log} has all of it)") from error
        except BaseException:
            self._end_java()
            raise

    def _keep_catalog(self, folder: Path) -> CatalogFile:
        return CatalogFile(folder / CATALOG, self._gateway, self.classic._jsparkSession.sharedState())

    def check_catalog(self) -> None:
        """CatalogNotKept if tables were made that the next start would not know."""
        if self._catalog is not None:
            self._catalog.check()

    def _popen_words(self, log: IO[bytes]) -> dict[str, Any]:
        words: dict[str, Any] = {"stdout": log, "stderr": log}
        if self._start.lock is not None:
            words["pass_fds"] = [self._start.lock.fileno()]
        return words

    def _connect(self) -> Any:
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        service = getattr(self.jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        port = getattr(service, "MODULE$").localPort()
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # pyspark.sql.functions and SparkSession.active() go by it
        spark = ConnectSession.builder.remote(f"sc://localhost:{port}").create()
        # The other end is our own child: if it does not answer it is dead, and asking again for minutes would hide
        # that.
        spark.client.set_retry_policies([])
        return spark

    def uri(self, folder: Path) -> str:
        """A folder as Spark's pipelines find it.

        They quote what they are given, however it is written, and then take the result for a path: of `my clicks` they
        make a folder beside it, `my%20clicks`. So what needs quotes goes by another name, which ends with the session.
        """
        if not _is_plain(folder) and folder not in self._names:
            folder.mkdir(parents=True, exist_ok=True)
            usual = Path(tempfile.gettempdir())
            own = tempfile.mkdtemp(prefix="penstock-run-", dir=usual if _is_plain(usual) else "/tmp")  # noqa: S108
            self._names[folder] = Path(own) / "folder"
            self._names[folder].symlink_to(folder)
        return f"file://{self._names.get(folder, folder)}"

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def jvm(self) -> Any:
        """What is in the JVM, by its name there."""
        return self._context._jvm

    def pipeline_update(self, graph: str) -> Any:
        """The engine's object for a run of a graph that is under way; None if there is none."""
        service = getattr(self.jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        client = self.spark.client
        key = self.jvm.org.apache.spark.sql.connect.service.SessionKey(client._user_id or "", client._session_id)
        holder = getattr(service, "MODULE$").sessionManager().getIsolatedSessionIfPresent(key)
        update = holder.get().getPipelineExecution(graph) if holder.isDefined() else None
        return update.get() if update is not None and update.isDefined() else None

    def executions(self, update: Any) -> list[Any]:
        """The flows that the engine has run in an update, as it has them."""
        graph = update.pipelineExecution().graphExecution()
        found = []
        if graph.isDefined():
            values = graph.get().flowExecutions().valuesIterator()
            while values.hasNext():
                found.append(values.next())
        return found

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End Spark and its JVM; whatever was under way is cut off."""
        if self.alive:
            with contextlib.suppress(Exception):  # a session that broke is stopped by the end of its JVM as well
                self.spark.stop()
                self._context.stop()
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        self._end_java(leave=self._start.makes)

    def _end_java(self, leave: bool = False) -> None:
        """End the JVM. One that makes the archive of classes goes on when it is left to itself."""
        if leave and self._catalog is None:
            with contextlib.suppress(Py4JError):  # Derby says by an exception that it is shut down
                self.jvm.java.sql.DriverManager.getConnection("jdbc:derby:;shutdown=true")
        self._gateway.shutdown()
        assert self._process.stdin is not None
        if leave:
            class_archive.lower_priority(self._process.pid)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if not leave:
            self._wait_for_java()
        self._remove_temporary()
        # What pyspark remembers of a JVM that is gone would stop the next session from starting.
        SparkContext._gateway = SparkContext._jvm = None

    def _wait_for_java(self) -> None:
        if self._start.makes:  # of a start that failed, and nothing is to be kept of it
            self._process.kill()
        try:
            self._process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _remove_temporary(self) -> None:
        """Remove what the JVM left, also that of a run that was killed, and our own."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        for name in self._names.values():
            shutil.rmtree(name.parent, ignore_errors=True)
