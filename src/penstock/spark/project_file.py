"""A first look at a project, without Spark: enough to start Java before half of PySpark is imported.

`project.load` reads the specification with Spark's own code, which takes a second to import. For anything
unusual the answer here is None, and `load` says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from penstock.spark.problems import Problem, check_folder

STATE = ".penstock"
"""The folder in a project for everything that runs leave behind."""
_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """The settings of a Spark for a project."""

    folder: Path
    name: str
    configuration: dict[str, str]

    @property
    def state(self) -> Path:
        return self.folder / STATE


def peek(folder: Path) -> ProjectFile | None:
    """Read the specification in a folder, if it is the only one and has no mistake."""
    folder = folder.resolve()
    found = [folder / name for name in _NAMES if (folder / name).is_file()]
    if len(found) != 1:
        return None
    try:
        check_folder(folder)
        said: Any = yaml.safe_load(found[0].read_text(encoding="utf-8"))
        for file in _files(folder, said):
            if file.suffix == ".py":
                compile(file.read_bytes(), file, "exec")
        name, configuration = said["name"], dict(said.get("configuration") or {})
    except (Problem, OSError, ValueError, SyntaxError, TypeError, KeyError, AttributeError, yaml.YAMLError):
        return None
    words = [name, *configuration, *configuration.values()]
    return ProjectFile(folder, name, configuration) if all(isinstance(word, str) for word in words) else None


def _files(folder: Path, said: Any) -> list[Path]:
    patterns = [library["glob"]["include"] for library in said["libraries"]]
    patterns = [f"{pattern}/*" if pattern.endswith("/**") else pattern for pattern in patterns]
    return [file for pattern in patterns for file in folder.glob(pattern) if file.is_file()]
