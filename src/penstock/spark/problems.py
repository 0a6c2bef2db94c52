"""Reports a mistake in a project in a line or two, with the place in the user's file.

Spark answers a misspelt table with a plan, and an exception in a data source with two stacks of which neither is the
user's. Here a mistake has a place (the innermost line of the project in the stack, or the line that declares the flow)
and one sentence that says what is wrong. The whole text stays in Spark's log.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file of the project."""

    file: Path
    line: int | None = None
    begins: int | None = field(default=None, compare=False)
    """Of a statement of SQL: the line on which the statement before it ends, from which Spark counts."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else str(self.file)


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake."""

    text: str
    place: Place | None = None
    lasting: bool = False
    """Another attempt would meet it again: an option or an expression is wrong, or data are gone."""

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text


_WATERMARK = (
    "(Tables of the same project are known only once all files are loaded. withWatermark() and a few others ask for "
    "them before that; in SQL it works: FROM STREAM clicks WATERMARK time DELAY OF INTERVAL 10 SECONDS.)"
)


class Problem(Exception):
    """The project is wrong: nothing of it was run."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings: Sequence[Finding] = findings


class RunFailed(Exception):
    """A run began and failed. What streams have committed is kept, and the next run continues there."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings: Sequence[Finding] = findings

    @property
    def lasting(self) -> bool:
        """Whether another run would fail as well."""
        return any(each.lasting for each in self.findings)


def check_folder(folder: Path) -> None:
    """Problem if Spark would read the path of a project as something else: as a pattern, and then find no rows in its
    tables.
    """
    if odd := "".join(sorted(set(str(folder.resolve())) & set(",;*?[]{}\\\n"))):
        raise Problem(
            Finding(
                f"the path of {folder.resolve()} has {' '.join(odd)!r}, which means something to Spark; give the "
                "folder another name"
            )
        )


def of_exception(error: BaseException, folder: Path, file: Path) -> Problem | RunFailed:
    """The problem behind an exception that a file of the project raised while it was loaded.

    A server that could not be asked for a schema is no mistake in the project.
    """
    if isinstance(error, SyntaxError) and error.filename and _is_in(folder, error.filename):
        return Problem(Finding(f"syntax error: {error.msg}", Place(Path(error.filename), error.lineno)))
    if file.suffix == ".sql":
        return Problem(Finding(sentence(error), of_sql(str(error), file)))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_in(folder, frame.filename)]
    place = Place(Path(frames[-1].filename), frames[-1].lineno) if frames else Place(file)
    text = sentence(error)
    if "TABLE_OR_VIEW_NOT_FOUND" in text:
        text += " " + _WATERMARK
    return (RunFailed if "ServerUnreachable: " in str(error) else Problem)(Finding(text, place))


def _is_in(folder: Path, file: str) -> bool:
    return Path(file).resolve().is_relative_to(folder)


def sentence(error: BaseException) -> str:
    """The message of an exception, without Spark's internals."""
    text = str(error).strip()
    if type(error).__module__.startswith("pyspark."):
        return shorten(text)
    if type(error).__module__.startswith("py4j.") and hasattr(error, "java_exception"):
        return shorten(str(error.java_exception.getMessage()))  # an error of Java's that PySpark has no class for
    name = type(error).__name__
    return f"{name}: {shorten(text)}" if text else name


_LAST_LINE_OF_A_STACK = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*): (.+)$", re.MULTILINE)
_LASTING_OF_OURS = ("OptionError", "DataLoss", "ServerRefuses", "BadEntry", "Fenced")
_OUR_OWN = ("ServerUnreachable", *_LASTING_OF_OURS)  # these say all there is to say
_OTHER_SOURCES = "sources in the checkpoint offsets"
"""Spark's words for a query that reads other sources than its checkpoint knows."""
_LASTING = re.compile(rf"SQLSTATE: (?:0A|21|22|42)|\b(?:{'|'.join(_LASTING_OF_OURS)}): |{_OTHER_SOURCES}")
"""Of SQLSTATE these classes: not supported, cardinality, data that an expression cannot take, and what a statement
names or means.
"""


_ANEW = "(`penstock run DIR --full-refresh TABLE` starts the flow of a table anew.)"


def finding(said: str, place: Place | None) -> Finding:
    """Spark's error for a failed flow, at the place of the flow.

    >>> finding("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", None).lasting
    True
    >>> finding("Python worker failed to connect back.", None).lasting
    False
    """
    how = f" {_ANEW}" if "DataLoss: " in said else ""
    return Finding(f"{shorten(said)}{how}", in_statement(said, place), lasting=_LASTING.search(said) is not None)


_LINE = re.compile(r"(?:\(line (\d+), pos|\bline (\d+) pos|== SQL \(line (\d+), position)")


def line_within(said: str) -> int | None:
    """The line of a statement that Spark's message names; it counts from the end of the statement before."""
    found = _LINE.search(said)
    return int(next(filter(None, found.groups()))) if found else None


def in_statement(said: str, place: Place | None) -> Place | None:
    """The line of a file of SQL that a message is about, if it names one.

    Otherwise the line at which the flow is declared.
    """
    line = line_within(said)
    if place is None or place.begins is None or line is None:
        return place
    return Place(place.file, place.begins + line - 1)


def of_sql(said: str, file: Path) -> Place:
    """The place of an error in a file of SQL which Spark could not parse.

    It shows the statement, and the line within.
    """
    line = line_within(said)
    _, shown, statement = said.partition("== SQL ==\n")
    if line is None or not shown:
        return Place(file)
    before, found, _ = file.read_text(encoding="utf-8").partition("\n".join(statement.split("\n")[:line]))
    return Place(file, before.count("\n") + line) if found else Place(file)


def shorten(text: str) -> str:
    """The sentence in a message of Spark, and what to do where Spark does not say it: no stack, no plan, no SQLSTATE.

    >>> shorten("[UNRESOLVED_COLUMN] A column `tme` cannot be resolved. SQLSTATE: 42703;\\n'Aggregate ['ALL]")
    '[UNRESOLVED_COLUMN] A column `tme` cannot be resolved.'
    """
    _, found, stack = text.rpartition("Traceback (most recent call last):")
    if found:
        raised = _LAST_LINE_OF_A_STACK.search(stack)
        if raised is not None and raised[1] == "Py4JJavaError" and (said := _OF_JAVA.search(stack, raised.end())):
            return shorten(stack[said.end() :])  # Python's line says no more than "An error occurred while calling o1"
        if raised is not None:
            return raised[2].strip() if raised[1] in _OUR_OWN else f"{raised[1]}: {raised[2].strip()}"
    if _WITHOUT_WORDS.search(text):
        return _NO_WORDS
    text = _OF_A_QUERY.sub("", text)
    sentence = " ".join(_NOT_FOR_USERS.split(text, maxsplit=1)[0].split())
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in sentence), "")
    if "UNRESOLVED_COLUMN" in sentence and "`entry`" in sentence and "`offset`" in sentence:
        remedy = _NO_SCHEMA
    return f"{sentence.rstrip('.')}. {remedy}" if remedy else sentence


_NOT_FOR_USERS = re.compile(
    r"\s*SQLSTATE: |\s+(?:Verify the spelling|If you want to force|Perhaps you are) |\n\s*at |"
    r"\n\s*(?:['~+*]|JVM stacktrace)|\s+=== Streaming Query ==="
)
"""Where that begins in a message which only Spark's authors need, or which would do harm."""
_OF_A_QUERY = re.compile(r"^\[STREAM_FAILED\] Query \[[^]]*\] terminated with exception: (?:requirement failed: )?")
_OF_JAVA = re.compile(r"^: (?:[\w$]+\.)+[\w$]+: ", re.MULTILINE)
"""Where the exception of Java begins in one of py4j."""
_WITHOUT_WORDS = re.compile(r"terminated with exception:\s+SQLSTATE: \w+ \(no cause message\)")
_NO_WORDS = "Spark says no reason: a Python process of the query has ended, or was killed. Start the query again."
_NO_SCHEMA = (
    "If it is a field of a stream: the stream has no schema now. Set one (TSCHEMA SET, `penstock schema infer`), or "
    "name the columns with .schema(...)."
)
_KILLED = "A Python process of Spark has ended, or was killed: start the query again, several times if need be."
"""With fork_server.py killed, the first process of each kind still fails; the next one starts without it."""
_REMEDIES = {
    "INSERT_COLUMN_ARITY_MISMATCH": (
        "If it is a view of a stream, name in it the columns that you insert: CREATE TEMPORARY VIEW v (tag string, "
        "entry string) USING penstock OPTIONS (stream 's')."
    ),
    "Stream closed": _KILLED,
    "Python worker exited unexpectedly (crashed)": _KILLED,
    "does not support Update mode": "Write in foreachBatch, with the options txnAppId and txnVersion.",
    "Python worker failed to connect back": (
        "Spark gives a Python process ten seconds to start, and this machine is too busy for that: start the query "
        "again."
    ),
    "DATA_SOURCE_NOT_FOUND": (
        "If it is penstock: make the session with penstock.spark.builder, and call penstock.spark.activate(spark) in "
        "threads of your own."
    ),
    "SCHEMA_NOT_COMPATIBLE": "The state of the query was made with other columns: undo the change, or give the changed "
    "query a checkpoint of its own.",
    _OTHER_SOURCES: "Read the sources that the query read before, or give the changed query a checkpoint of its own.",
    "CONCURRENT_STREAM_LOG_UPDATE": "Give each query a checkpoint of its own.",
    "another query with same id is already active": "Stop the other one first, or give each query a checkpoint of its "
    "own.",
    "CONCURRENT_QUERY": "Stop the other one first, or give each query a checkpoint of its own.",
}
"""What to do about errors in which Spark does not say it, by a part of their text."""
