"""A Spark session for a project: Java, Python, catalog and places for files are set, so that no user has to.

Declarative pipelines speak Spark Connect, so a session here is two: the classic one, which owns the JVM and shows what
runs in it, and a client of the Connect server inside that JVM, which the project's files get. The server listens on
127.0.0.1, on a port that the system chooses, and takes only clients with a token made for this start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from penstock.spark.problems import Finding, Problem, RunFailed
from penstock.spark.starting import StartingSpark


def _is_of_a_connection(error: BaseException | None) -> bool:
    """Whether an error, or one that it comes from, says that Java did not answer."""
    while error is not None:
        if isinstance(error, Py4JError | ConnectionError) and not isinstance(error, Py4JJavaError):
            return True
        if type(error) is SparkConnectGrpcException:  # an error of gRPC; those that Java raised are subclasses
            return True
        error = error.__cause__
    return False


def _is_plain(path: Path) -> bool:
    """Whether a path is the same in a URI."""
    return path.as_uri() == f"file://{path}"


class PipelineSession:
    """A JVM with Spark in it. `spark` is what projects use, `classic` looks behind it."""

    def __init__(self, starting: StartingSpark) -> None:
        self._starting = starting
        self._names: dict[Path, Path] = {}  # other names of folders
        self.has_run = False
        """Whether a project came to its end, so that Java has most of the classes that a run needs."""
        try:
            import pyspark.sql.connect.session  # noqa: F401  (half a second, in which Java starts)

            starting.wait()
            self.classic = starting.classic
            self.spark: Any = self._connect()
        except Py4JError as error:
            starting.end()
            raise starting.did_not_start() from error
        except BaseException:
            starting.end()
            raise

    def check_catalog(self) -> None:
        """CatalogNotKept if tables were made that the next start would not know."""
        if self._starting.catalog is not None:
            self._starting.catalog.check()

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

    def __enter__(self) -> PipelineSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def jvm(self) -> Any:
        """A class or package of the JVM, by its name."""
        return self._starting.gateway.jvm

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

    def queries(self, update: Any) -> list[Any]:
        """The queries of the streaming flows that the engine has started in an update."""
        found = []
        for each in self.executions(update):
            if each.isStreaming():
                with contextlib.suppress(Py4JJavaError):  # it is to be started, or could not be
                    found.append(each.getStreamingQuery())
        return found

    def make_tables(self, update: Any) -> list[Any]:
        """Make the tables of an update as the engine does before it runs flows; its flows, as the engine has them."""
        engine = self.jvm.org.apache.spark.sql
        session = update.spark()
        engine.classic.SparkSession.setActiveSession(session)
        case_sensitive = session.sessionState().conf().caseSensitiveAnalysis()
        resolved = update.unresolvedGraph().resolve(case_sensitive).validate(case_sensitive)
        datasets = getattr(self.jvm, "org.apache.spark.sql.pipelines.graph.DatasetManager$")
        graph = getattr(datasets, "MODULE$").materializeDatasets(resolved, update)
        flows = graph.resolvedFlows().iterator()
        found = []
        while flows.hasNext():
            found.append(self.plan(graph, update, flows.next(), engine.streaming.Trigger.AvailableNow()))
        return found

    def plan(self, graph: Any, update: Any, flow: Any, trigger: Any) -> Any:
        """A flow as the engine would run it, with another trigger."""
        always = self.jvm.PythonUtils.toScalaMap({}).withDefaultValue(trigger)  # which is a function, to Scala
        return self.jvm.org.apache.spark.sql.pipelines.graph.FlowPlanner(graph, update, always).plan(flow)

    @property
    def alive(self) -> bool:
        return self._starting.alive

    @contextlib.contextmanager
    def its_end_is_told(self) -> Iterator[None]:
        """Within a with statement, raise RunFailed for an error that came because the JVM has ended."""
        try:
            yield
        except (Problem, RunFailed, PySparkException, Py4JError, OSError) as error:
            if self.alive and not (_is_of_a_connection(error) and self._starting.ends()):
                raise
            raise RunFailed(Finding(self._starting.how_it_ended())) from error

    def stop(self) -> None:
        """End Spark and its JVM; whatever was under way is cut off."""
        if self.alive:
            with contextlib.suppress(Exception):  # a session that broke is stopped by the end of its JVM as well
                self.spark.stop()
                self._starting.context.stop()
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
        self._starting.end(leave=self.has_run)
        for name in self._names.values():
            shutil.rmtree(name.parent, ignore_errors=True)
