"""A Spark Declarative Pipelines project: its specification, its files, and what they declare.

The format is Spark's own (`spark-pipeline.yml` beside files of Python and SQL), read by Spark's own code. Added here:
every declaration is remembered with its place, so that a mistake can be shown where it was made, and a project that
would lose rows is refused before it runs.

Relative paths for `storage` are taken from the project's folder, so that a project can be moved; Spark wants an
absolute one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pyspark.errors import PySparkException
from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
from pyspark.pipelines.block_session_mutations import block_session_mutations
from pyspark.pipelines.cli import PIPELINE_SPEC_FILE_NAMES, PipelineSpec, change_dir, load_pipeline_spec
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import Output, StreamingTable, Table
from pyspark.pipelines.source_code_location import SourceCodeLocation

from penstock.spark.problems import Finding, Place, Problem, check_folder, of_exception, sentence
from penstock.spark.project_file import STATE
from penstock.spark.sql_files import plain, short, statements
from penstock.spark.table_flows import TableFlows

FILE_FORMATS = frozenset({"parquet", "orc", "json", "csv", "text", "avro", "xml"})


@dataclass(frozen=True)
class Project:
    """A folder with a specification."""

    folder: Path
    spec_path: Path
    spec: PipelineSpec

    @property
    def state(self) -> Path:
        return self.folder / STATE

    @property
    def storage(self) -> str | Path:
        """Where Spark keeps checkpoints: a URI, or a folder of this machine."""
        named = self.spec.storage
        return named if urlsplit(named).scheme else (self.folder / named).resolve()

    @property
    def table_flows(self) -> TableFlows:
        return TableFlows(self.state / "flows.json")

    def full_name(self, name: str) -> str:
        """A name of a table or a flow as Spark completes it: one thing may be spelt in three ways.

        `t`, `default.t` and `spark_catalog.default.t` are one table.
        """
        parts = plain(name).split(".")
        missing = 3 - len(parts)
        return ".".join([self.spec.catalog or "spark_catalog", self.spec.database or "default"][:missing] + parts)

    def files(self) -> list[Path]:
        """The files with declarations, in the order of their names."""
        found: dict[Path, None] = {}
        for library in self.spec.libraries:
            for file in sorted(self.folder.glob(library.include)):
                if file.is_file() and "__pycache__" not in file.parts:
                    found[file] = None
        return list(found)


def load(folder: Path) -> Project:
    """The project in a folder; Problem if there is none, or if its specification is wrong."""
    folder = folder.resolve()
    found = [folder / name for name in PIPELINE_SPEC_FILE_NAMES if (folder / name).is_file()]
    if not found:
        raise Problem(
            Finding(f"there is no spark-pipeline.yml in {folder}; `penstock init DIR` writes a project to begin with")
        )
    if len(found) > 1:
        raise Problem(Finding("both spark-pipeline.yml and spark-pipeline.yaml are here; keep one", Place(found[0])))
    check_folder(folder)
    path = found[0]
    try:
        spec = load_pipeline_spec(path)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise Problem(Finding(f"not YAML: {error.problem}", Place(path, line))) from None
    except PySparkException as error:
        raise Problem(Finding(sentence(error), Place(path))) from None
    except (
        TypeError,
        KeyError,
        AttributeError,
        UnicodeDecodeError,
    ):  # a list where there should be a mapping, and the like
        raise Problem(
            Finding("not the specification of a pipeline: it needs name, storage and libraries", Place(path))
        ) from None
    project = Project(folder, path, spec)
    if not project.files():
        raise Problem(Finding("no file matches the patterns under libraries: there is nothing to run", Place(path)))
    for file in project.files():
        _check_syntax(file, folder)
    return project


def _check_syntax(file: Path, folder: Path) -> None:
    """Report mistakes that can be found before Spark starts."""
    if file.suffix == ".py":
        try:
            compile(file.read_bytes(), file, "exec")
        except (SyntaxError, ValueError) as error:
            raise of_exception(error, folder, file) from None


@dataclass(frozen=True, slots=True)
class _Source:
    """A flow into a target; their names in full."""

    flow: str
    target: str
    place: Place


def _place(location: SourceCodeLocation) -> Place:
    return Place(Path(location.filename), location.line_number)


class Declarations(GraphElementRegistry):
    """Passes on to Spark what the files declare, and remembers where."""

    def __init__(self, beneath: GraphElementRegistry, project: Project) -> None:
        self._beneath = beneath
        self._project = project
        self._flows: list[_Source] = []
        self._tables: dict[str, Place] = {}  # also materialized views
        self._twice: list[Finding] = []
        self._formats: dict[str, str] = {}  # of streaming tables

    def register_output(self, output: Output) -> None:
        name = self._project.full_name(output.name)
        if isinstance(output, Table):
            self._add_table(name, _place(output.source_code_location))
        if isinstance(output, StreamingTable):
            self._formats[name] = output.format or self._default_format
        self._beneath.register_output(output)

    def register_flow(self, flow: Flow) -> None:
        self._remember(flow.name, flow.target, _place(flow.source_code_location))
        self._beneath.register_flow(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        self._remember(flow.name or flow.target, flow.target, _place(flow.source_code_location))
        self._beneath.register_auto_cdc_flow(flow)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        file = self._project.folder / file_path
        for each in statements(sql_text):
            target = self._project.full_name(each.target)
            if each.table:
                self._add_table(target, Place(file, each.line, each.begins))
            if each.streaming_table:
                self._formats[target] = each.format or self._default_format
            if each.flow:
                self._remember(each.flow, each.target, Place(file, each.line, each.begins))
        self._beneath.register_sql(sql_text, file_path)

    @property
    def has_views(self) -> bool:
        """Whether there is a materialized view, which is computed by a batch."""
        return not self._tables.keys() <= self._formats.keys()

    def _add_table(self, name: str, place: Place) -> None:
        first = self._tables.setdefault(name, place)
        if first is not place:
            self._twice.append(
                Finding(f"there is a table {short(name)} already, in {first}; give one of them another name", place)
            )

    @property
    def _default_format(self) -> str:
        return self._project.spec.configuration.get("spark.sql.sources.default", "parquet")

    def _remember(self, flow: str, target: str, place: Place) -> None:
        full = self._project.full_name
        self._flows.append(_Source(full(flow), full(target), place))

    def place_of(self, flow: str) -> Place | None:
        """Where a flow is declared."""
        name = self._project.full_name(flow)
        return next((each.place for each in self._flows if each.flow == name), None)

    def tables_named(self, option: str, names: Sequence[str]) -> list[str]:
        """The tables of these names, in full; Problem if the project has no such table, which Spark would ignore."""
        found = [self._project.full_name(name) for name in names]
        for name, full in zip(names, found, strict=True):
            if full not in self._tables:
                there_are = ", ".join(sorted(map(short, self._tables))) or "none"
                raise Problem(
                    Finding(f"{option} {name}: there is no such table in this project; there are: {there_are}")
                )
        return found

    def flows_into_files(self) -> dict[str, str]:
        """The flow into each streaming table that is made of files."""
        return {each.target: each.flow for each in self._flows if self._is_of_files(each.target)}

    def _is_of_files(self, table: str) -> bool:
        return self._formats.get(table, "").lower() in FILE_FORMATS

    def check(self) -> None:
        """Refuse declarations that Spark would run with a wrong result.

        A table of files keeps, with its files, which numbers of batches it has. Two flows both begin with batch 0: of
        two batches with the same number the table takes the first and drops the second, without an error.
        """
        if self._twice:
            raise Problem(*self._twice)
        first: dict[str, _Source] = {}
        findings = []
        for each in self._flows:
            other = first.setdefault(each.target, each)
            if other is not each and self._is_of_files(each.target):
                findings.append(
                    Finding(
                        f"flow {short(each.flow)} and flow {short(other.flow)} ({other.place}) both write to the "
                        f"table {short(each.target)}, which is made of {self._formats[each.target]} files: rows would "
                        "be lost in silence. Give each a table of its own, or read both in one flow with union()",
                        each.place,
                    )
                )
        if findings:
            raise Problem(*findings)

    def check_table_flows(self, emptied: Collection[str]) -> None:
        """Refuse a flow into a table of files that a flow of another name has filled; see table_flows.py."""
        known = self._project.table_flows.flows()
        findings = [
            Finding(
                f"flow {short(flow)} writes to the table {short(table)}, which is made of {self._formats[table]} "
                f"files that came from flow {short(before)}: rows would be lost in silence. Name the flow "
                f"{short(before)} again, or empty the table with --full-refresh {short(table)}",
                self.place_of(flow),
            )
            for table, flow in self.flows_into_files().items()
            if (before := known.get(table, flow)) != flow and table not in emptied
        ]
        if findings:
            raise Problem(*findings)


def declare(project: Project, spark: Any, graph: str, beneath: GraphElementRegistry) -> Declarations:
    """Load the files of a project into a graph of Spark's; Problem for the first that is wrong."""
    declarations = Declarations(beneath, project)
    with change_dir(project.folder), graph_element_registration_context(declarations):
        for file in project.files():
            try:
                _load_file(file, project, spark, graph, declarations)
            except (Exception, SystemExit) as error:
                raise of_exception(error, project.folder, file) from error
    declarations.check()
    return declarations


def _load_file(file: Path, project: Project, spark: Any, graph: str, declarations: Declarations) -> None:
    if file.suffix == ".sql":
        declarations.register_sql(file.read_text(encoding="utf-8"), file.relative_to(project.folder))
    elif file.suffix == ".py":
        module_spec = importlib.util.spec_from_file_location(file.stem, file)
        assert module_spec is not None and module_spec.loader is not None
        module = importlib.util.module_from_spec(module_spec)
        module.__dict__["spark"] = spark
        with (
            add_pipeline_analysis_context(spark=spark, dataflow_graph_id=graph, flow_name=None),
            block_session_mutations(),
        ):
            module_spec.loader.exec_module(module)
    else:
        raise ValueError(
            "only files of Python (.py) and SQL (.sql) can be part of a pipeline; change the patterns under libraries"
        )
