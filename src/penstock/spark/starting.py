"""A JVM with Spark in it, which starts while this program does something else.

Java is started at once. What talks to it (the gateway, the context, the catalog) waits for it in a thread, while this
program imports the other half of PySpark, reads the project's files and starts a server. On two cores a start takes as
long as the longer of the two, not their sum.

The process is known from its first moment, so an interrupt can end it at any time. It also ends with this process,
however that ends: it reads a pipe that we hold. Its output goes to a file: hundreds of lines would hide the one that
matters.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.sql import SparkSession

from penstock.spark import catalog_file, class_archive, local_files
from penstock.spark.catalog_file import IMPLEMENTATION, CatalogFile
from penstock.spark.class_archive import JAVA_OPTIONS
from penstock.spark.java import set_java_home
from penstock.spark.worker_python import FORK_SERVER, fork_server, use_worker_python

SECONDS_TO_END = 30
SECONDS_OF_AN_END = 5
LOOK_EVERY = 0.02  # seconds
CATALOG, WAREHOUSE = "catalog.json", "warehouse"
"""Which tables there are, and the folder of their files."""
METASTORE = "metastore"
"""The folder of Hive's catalog, which projects of earlier versions have."""
_SIGNALLED = 128
"""What a process adds to the number of a signal for its exit code."""
_LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the Java that Spark starts first, only to put together the command line of the other."""


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


def settings(folder: Path) -> dict[str, str]:
    """The settings of a session in `folder`, unless the project has others."""
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


def _quick_java(configuration: Mapping[str, str], stays: bool) -> list[str]:
    """Options for a JVM that should start quickly.

    The better of Java's two compilers takes a third of the CPU time of a start, and makes what runs for minutes twice
    as fast, so a JVM that stays has it. Java refuses to start with two collectors, so one that the user chose stays.
    """
    said = [configuration.get("spark.driver.extraJavaOptions", "")]
    said += [os.environ.get(name, "") for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS")]
    has_collector = re.search(r"-XX:\+Use\w+GC\b", " ".join(said))
    return [*([] if stays else ["-XX:TieredStopAtLevel=1"]), *([] if has_collector else ["-XX:+UseSerialGC"])]


def _reason(log: Path, newest: bool = False) -> str:
    """The line of a log that says why a start failed: the first exception, or else the first that complains, or the
    last line. Of a JVM that has worked, the newest of them.
    """
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    for complaint in (r"^[\w.$]+(?:Exception|Error): ", r"^(?!at ).*(?:\bError\b|Exception\b)"):
        if found := [line for line in lines if re.search(complaint, line)]:
            return found[-1 if newest else 0]
    return lines[-1] if lines else "Java said nothing"


class StartingSpark:
    """Spark in a folder, while it starts; `wait` returns when it is there. A with statement ends it.

    One that `stays` is to run for more than some minutes.
    """

    gateway: Any = None
    context: Any = None
    classic: Any = None
    """The classic session, which owns the JVM."""
    catalog: CatalogFile | None = None
    """None if the catalog is Hive's."""

    def __init__(self, folder: Path, name: str, configuration: Mapping[str, str], stays: bool = False) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        prepare(self.folder)
        self.log = self.folder / "spark.log"
        self._temporary = self.folder / "tmp"
        self._temporary.mkdir(exist_ok=True)
        os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = str(uuid.uuid4())
        chosen = {**settings(self.folder), **catalog_file.settings(configuration, self.folder / METASTORE)}
        chosen |= configuration
        chosen |= local_files.settings(chosen)
        self._keeps_catalog = chosen[IMPLEMENTATION] == "in-memory"
        self._start = class_archive.Start()
        if JAVA_OPTIONS not in configuration:
            self._start = class_archive.start_for(chosen)
            chosen[JAVA_OPTIONS] = " ".join([*_quick_java(chosen, stays), self._start.option])
        self._conf = SparkConf().setAppName(name).setAll(
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
        self._ended = False
        self._failure: BaseException | None = None
        self._address = self._temporary / f"gateway-{uuid.uuid4()}"
        self._fork_server = fork_server()
        try:
            with self.log.open("wb") as log:
                self.process = self._launch(log)
        except BaseException:
            self._end_fork_server()
            raise
        finally:
            if self._start.lock is not None:
                self._start.lock.close()
        self._thread = threading.Thread(target=self._open, name="penstock-spark-start", daemon=True)
        self._thread.start()

    def __enter__(self) -> StartingSpark:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def wait(self) -> None:
        """Return when Spark has started; SparkDidNotStart if it does not."""
        self._thread.join()
        if isinstance(self._failure, (Py4JError, _JavaEnded)):
            raise self.did_not_start() from self._failure
        if self._failure is not None:
            raise self._failure

    def did_not_start(self) -> SparkDidNotStart:
        return SparkDidNotStart(f"Spark did not start: {_reason(self.log)} ({self.log} has all of it)")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ends(self) -> bool:
        """Whether the JVM is gone, or is about to be: its connections end a moment before it does."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SECONDS_OF_AN_END)
        return not self.alive

    def how_it_ended(self) -> str:
        """What to say of a JVM that is gone and should not be."""
        code = self.process.wait()
        number = -code if code < 0 else code - _SIGNALLED  # Java answers SIGTERM with an exit code
        if number == signal.SIGKILL:
            return "Spark's Java process was ended by SIGKILL, perhaps because memory was short"
        if number == signal.SIGTERM:
            return "Spark's Java process was ended by SIGTERM"
        return f"Spark's Java process ended with exit code {code}: {_reason(self.log, newest=True)}"

    def _launch(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start Java as PySpark does, which waits for it."""
        words = [str(Path(_find_spark_home()) / "bin" / "spark-submit")]
        for name, value in self._conf.getAll():
            words += ["--conf", f"{name}={value}"]
        words += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        lock = self._start.lock
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={
                "SPARK_LAUNCHER_OPTS": _LAUNCHER_OPTIONS,
                **os.environ,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._address),
                FORK_SERVER: self._fork_server.name if self._fork_server is not None else "",
            },
            pass_fds=[] if lock is None else [lock.fileno()],
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),  # what Ctrl-C means is for us to say
        )

    def _open(self) -> None:
        try:
            self.gateway = self._connect()
            self.context = SparkContext(gateway=self.gateway, conf=self._conf)
            self.classic = SparkSession(self.context)
            if self._keeps_catalog:
                shared_state = self.classic._jsparkSession.sharedState()
                self.catalog = CatalogFile(self.folder / CATALOG, self.gateway, shared_state)
        except BaseException as error:  # raised by wait()
            self._failure = error

    def _connect(self) -> Any:
        """The gateway to Java, when Java has told its address: in a file, which it renames when it is whole."""
        while not self._address.exists():
            if self.process.poll() is not None:
                raise _JavaEnded
            time.sleep(LOOK_EVERY)
        with self._address.open("rb") as told:
            port, secret = read_int(told), UTF8Deserializer().loads(told)  # type: ignore[no-untyped-call]
        with _set({"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}):
            return launch_gateway()  # type: ignore[no-untyped-call]

    def end(self, leave: bool = False) -> None:
        """End the JVM, also while it starts. One that makes the archive of classes goes on if it is left to itself,
        which is for one that has done all that later ones will do.
        """
        if self._ended:
            return
        self._ended = True
        if self._thread.is_alive():
            self.process.kill()
            self._thread.join()
        if leave:
            self._note_classes()
        leave = leave and self._start.makes
        if leave and not self._keeps_catalog:
            with contextlib.suppress(Py4JError):  # Derby says by an exception that it is shut down
                self.gateway.jvm.java.sql.DriverManager.getConnection("jdbc:derby:;shutdown=true")
        if self.gateway is not None:
            self.gateway.shutdown()
        assert self.process.stdin is not None
        if leave:
            class_archive.lower_priority(self.process.pid)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        if not leave:
            self._wait_for_java()
        self._end_fork_server()
        shutil.rmtree(self._temporary, ignore_errors=True)  # also what a run left that was killed
        # What pyspark remembers of a JVM that is gone would stop the next session from starting.
        SparkContext._gateway = SparkContext._jvm = None

    def _end_fork_server(self) -> None:
        if self._fork_server is not None:
            self._fork_server.end()

    def _note_classes(self) -> None:
        if self._start.archive is not None:
            with contextlib.suppress(Py4JError, OSError):
                beans = self.gateway.jvm.java.lang.management.ManagementFactory
                loaded = int(beans.getClassLoadingMXBean().getTotalLoadedClassCount())
                self._start.archive.note(loaded, self._start.makes)

    def _wait_for_java(self) -> None:
        if self._start.makes:  # of a start that failed or did little, and nothing is to be kept of it
            self.process.kill()
        try:
            self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Signals that ask to stop wait until the end of this.

    An interrupt that is raised while modules are imported can get lost: in a `__del__`, for instance, Python only
    prints it.
    """
    if threading.current_thread() is not threading.main_thread():  # which gets no signals
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda sent, frame: came.append(sent)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for given in came:
        signal.raise_signal(given)


class _JavaEnded(Exception):
    """Java ended before it told its address."""


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment within a with statement."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
