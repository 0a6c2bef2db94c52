"""What is wrong with a project, in a line or two, with the place in the user's own file.

Spark answers a misspelt table with a plan, and an exception in a data source with two stacks of which neither is the user's. Here a
mistake has a place (the deepest line of the project that took part, or the line that declares the flow) and the one sentence
that says what is wrong. The whole text stays in Spark's log.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file of the project."""

    file: Path
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else str(self.file)


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake."""

    text: str
    place: Place | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text


_WATERMARK = (
    "(Tables of the same project are known only once all files are loaded. withWatermark() and a few others ask for them before "
    "that; in SQL it works: FROM STREAM clicks WATERMARK time DELAY OF INTERVAL 10 SECONDS.)"
)


class Problem(Exception):
    """The project is wrong: nothing of it was run."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings: Sequence[Finding] = findings


class RunFailed(Exception):
    """A run began and did not come to its end; what streams had committed is kept, and the next run goes on there."""

    def __init__(self, *findings: Finding) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings: Sequence[Finding] = findings


def check_folder(folder: Path) -> None:
    """Problem if Spark would read the path of a project as something else: as a pattern, and then find no rows in its tables."""
    if odd := "".join(sorted(set(str(folder.resolve())) & set(",;*?[]{}\\\n"))):
        raise Problem(
            Finding(
                f"the path of {folder.resolve()} has {' '.join(odd)!r}, which means something to Spark; give the folder another name"
            )
        )


def of_exception(error: BaseException, folder: Path, file: Path) -> Problem:
    """The problem behind an exception that a file of the project raised while it was loaded."""
    if isinstance(error, SyntaxError) and error.filename and _is_in(folder, error.filename):
        return Problem(Finding(f"syntax error: {error.msg}", Place(Path(error.filename), error.lineno)))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_in(folder, frame.filename)]
    place = Place(Path(frames[-1].filename), frames[-1].lineno) if frames else Place(file)
    text = sentence(error)
    if "TABLE_OR_VIEW_NOT_FOUND" in text:
        text += " " + _WATERMARK
    return Problem(Finding(text, place))


def _is_in(folder: Path, file: str) -> bool:
    return Path(file).resolve().is_relative_to(folder)


def sentence(error: BaseException) -> str:
    """What an exception says, without what only Spark's authors need."""
    text = str(error).strip()
    if type(error).__module__.startswith("pyspark."):
        return shorten(text)
    name = type(error).__name__
    return f"{name}: {shorten(text)}" if text else name


_LAST_LINE_OF_A_STACK = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*): (.+)$", re.MULTILINE)
_OUR_OWN = (
    "OptionError",
    "DataLoss",
    "ServerUnreachable",
    "ServerRefuses",
    "BadEntry",
)  # these say all there is to say


def shorten(text: str) -> str:
    """The sentence in a message of Spark: no stack, no plan, no SQLSTATE.

    >>> shorten("[UNRESOLVED_COLUMN] A column `tme` cannot be resolved. SQLSTATE: 42703; line 4 pos 26;\\n'Aggregate ['ALL]")
    '[UNRESOLVED_COLUMN] A column `tme` cannot be resolved.'
    """
    _, found, stack = text.rpartition("Traceback (most recent call last):")
    if found:
        raised = _LAST_LINE_OF_A_STACK.search(stack)
        if raised is not None:
            return raised[2].strip() if raised[1] in _OUR_OWN else f"{raised[1]}: {raised[2].strip()}"
    text = re.split(r"\s*SQLSTATE: |\s+Verify the spelling |\n\s*at |\n\s*(?:['~+*]|JVM stacktrace)", text, maxsplit=1)[
        0
    ]
    return " ".join(text.split())
