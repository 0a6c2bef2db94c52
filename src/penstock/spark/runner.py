"""Runs a project through Spark's own pipeline engine.

A run reads what is in the streams when it starts, and ends. The project's files are read anew for each run, so tables
that are recomputed whole (materialized views) see what came meanwhile; a graph of Spark's runs only once anyway. What
the engine made of the streaming flows is kept after a run: continuous.py starts them again as queries that stay.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

import pyspark.sql.connect.proto as proto
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

from penstock.spark.catalog_file import CatalogNotKept
from penstock.spark.pipeline_session import PipelineSession
from penstock.spark.problems import Finding, Place, Problem, RunFailed, finding, sentence
from penstock.spark.progress import OVER, Progress
from penstock.spark.project import Declarations, Project, declare
from penstock.spark.selection import Selection

_STATE = re.compile(r"Flow '?(?P<flow>[^']+?)'? (?:is|has) (?P<state>[A-Z]+)")
_FAILURE = re.compile(
    r"(?:Failed to resolve flow: '(?P<unresolved>[^']+)'|Flow '(?P<failed>[^']+)' has FAILED)"
    r".*?\nError: (?P<error>.*)",
    re.S,
)

_IN_FLOW = re.compile(r"in flow: ([\w.`]*\w`?)")


ATTEMPTS = 3
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0


def pause_after(attempts: int) -> float:
    """How long to wait after so many failures in a row.

    >>> [pause_after(attempts) for attempts in (1, 2, 3, 20)]
    [1.0, 2.0, 4.0, 60.0]
    """
    return float(min(FIRST_PAUSE * 2 ** min(attempts - 1, 16), LONGEST_PAUSE))


class Runner:
    """See the top of this file."""

    def __init__(
        self,
        project: Project,
        session: PipelineSession,
        progress: Progress,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._project = project
        self._session = session
        self._progress = progress
        self._tell = tell
        self._declarations: Declarations | None = None
        self._views: list[str] = []
        self.streaming: list[Any] = []
        """The streaming flows of the last run, as the engine has them."""

    def run(self, selection: Selection) -> None:
        """Run the project to the end of what there is.

        Problem if it is wrong, RunFailed if it did not come to its end.
        """
        self._go(selection, stays=False)

    def begin(self, selection: Selection) -> None:
        """Make ready what stays, as `streaming`.

        A project of streams alone only has its tables made, so its first rows come seconds earlier. A project that has
        views, or tables to empty, is run to the end of what there is.
        """
        self._go(selection, stays=selection.is_everything)

    def _go(self, selection: Selection, stays: bool) -> None:
        self._progress.begin_run()
        executions = self._run_again(selection, stays)
        try:
            self._session.check_catalog()
        except CatalogNotKept as error:
            raise RunFailed(Finding(str(error), lasting=True)) from error
        self._session.has_run = self._session.has_run or not selection.dry
        self.streaming = [each for each in executions if each.isStreaming()]
        batches = [each for each in executions if not each.isStreaming()]
        whole = [each for each in batches if each.flow().getClass().getSimpleName() == "CompleteFlow"]
        self._views = [str(each.destination().identifier().unquotedString()) for each in whole]

    def recompute_views(self) -> None:
        """Recompute the materialized views of the last run, while its streaming flows go on."""
        if self._views:
            self._run_again(Selection(refresh=self._views))

    def place_of(self, flow: str) -> Place | None:
        """Where a flow of the last run is declared."""
        return self._declarations.place_of(flow) if self._declarations is not None else None

    def _run_again(self, selection: Selection, stays: bool = False) -> list[Any]:
        """Run what is selected, and again if the failure may pass: a worker that started too slowly, for instance."""
        for attempt in range(1, ATTEMPTS):
            try:
                return self._run_graph(selection, stays)
            except RunFailed as failure:
                if failure.lasting or not self._session.alive:
                    raise
                self._tell(f"{failure}; running again in {pause_after(attempt):.0f} s")
                time.sleep(pause_after(attempt))
        return self._run_graph(selection, stays)

    def _run_graph(self, selection: Selection, stays: bool) -> list[Any]:
        """Run what is selected; what the engine ran."""
        spark, spec = self._session.spark, self._project.spec
        with self._session.its_end_is_told():
            try:
                # Spark was started with all of it. Only what a session may change can be said again for the graph.
                changeable = {key: value for key, value in spec.configuration.items() if spark.conf.isModifiable(key)}
                graph = create_dataflow_graph(spark, spec.catalog, spec.database, changeable)
                try:
                    registry = SparkConnectGraphElementRegistry(spark, graph)
                    declarations = declare(self._project, spark, graph, registry)
                    self._declarations = declarations
                    return self._run(graph, declarations, selection, stays)
                finally:
                    self._drop(graph)
            except PySparkException as error:
                raise RunFailed(Finding(sentence(error))) from error

    def _run(self, graph: str, declarations: Declarations, selection: Selection, stays: bool) -> list[Any]:
        """Run what is selected, if it can be; table_flows.py records which flow filled which table.

        Streams that are to stay are not run, if there is nothing else: only the tables are made.
        """
        declarations.tables_named("--refresh", selection.refresh)
        emptied = declarations.tables_named("--full-refresh", selection.full_refresh)
        flows = declarations.flows_into_files()
        if selection.full_refresh_all:
            emptied = list(flows)
        declarations.check_table_flows(emptied)
        table_flows = self._project.table_flows
        if not selection.dry:
            table_flows.enter_new(flows, emptied)
        if stays and not declarations.has_views:
            self._follow(graph, declarations, Selection(dry=True))  # which reports mistakes
            executions = self._make_tables(graph, declarations)
        else:
            executions = self._follow(graph, declarations, selection)
        if not selection.dry:
            table_flows.enter_emptied(flows, emptied)
        return executions

    def _make_tables(self, graph: str, declarations: Declarations) -> list[Any]:
        try:
            return self._session.make_tables(self._session.pipeline_update(graph))
        except (PySparkException, Py4JJavaError) as error:
            raise RunFailed(self._at_flow(error, declarations)) from error

    def _follow(self, graph: str, declarations: Declarations, selection: Selection) -> list[Any]:
        """Start the run, and listen until it is over; what the engine ran."""
        update: Any = None
        unresolved: list[Finding] = []
        failed: dict[str, Finding] = {}
        storage = self._project.storage
        try:
            for reply in start_run(
                self._session.spark, graph, selection.full_refresh, selection.full_refresh_all, selection.refresh,
                selection.dry, storage if isinstance(storage, str) else self._session.uri(storage),
            ):  # fmt: skip
                if "pipeline_event_result" not in reply:
                    continue
                update = update or self._session.pipeline_update(graph)
                message = reply["pipeline_event_result"].event.message
                if failure := _FAILURE.match(message):
                    flow = failure["unresolved"] or failure["failed"]
                    found = finding(failure["error"], declarations.place_of(flow))
                    if failure["unresolved"]:
                        unresolved.append(found)
                    else:
                        failed[flow] = found
                if state := _STATE.match(message):
                    if state["state"] in OVER and update is not None:
                        self._progress.follow(self._session.queries(update))
                    self._progress.event(state["flow"], state["state"])
        except PySparkException as error:
            if unresolved:  # a wrong project, or a server that could not be asked for a schema
                raise (Problem if any(each.lasting for each in unresolved) else RunFailed)(*unresolved) from error
            raise RunFailed(*(failed.values() or [self._at_flow(error, declarations)])) from error
        return self._session.executions(update) if update is not None else []

    def _at_flow(self, error: Exception, declarations: Declarations) -> Finding:
        """A refusal of the graph, at the flow it names if it names one."""
        named = _IN_FLOW.search(str(error))
        return Finding(sentence(error), declarations.place_of(named[1]) if named else None)

    def _drop(self, graph: str) -> None:
        """Let Spark forget a graph that was run."""
        command = proto.Command()
        command.pipeline_command.drop_dataflow_graph.CopyFrom(
            proto.PipelineCommand.DropDataflowGraph(dataflow_graph_id=graph)
        )
        client: Any = self._session.spark.client
        if self._session.alive:
            with contextlib.suppress(PySparkException):  # it goes with the session in the end
                client.execute_command(command)
