"""What a run of a pipeline tells of itself, in a hash of the server it reads from: a field for each project.

`penstock run` writes it about once a second, and the console shows it. A run that was killed stops writing: a report
that is old says so. The hash expires a week after the last run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

KEY = "penstock-pipelines"
KEPT_MS = 7 * 86_400_000
SILENT_MS = 15_000
"""A run that has written nothing for so long is gone, or its machine is."""


@dataclass(slots=True)
class PipelineReport:
    """Times are in milliseconds."""

    name: str
    place: str
    """The machine and the folder."""
    started: int
    updated: int
    state: str = "running"
    """running, done, stopped or failed"""
    error: str = ""
    flows: list[dict[str, Any]] = field(default_factory=list)
    """Of each flow: name, state, rows, rate, lag."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, raw: bytes) -> PipelineReport:
        """ValueError if it is none.

        >>> PipelineReport.decode(PipelineReport("demo", "here", 1, 2).encode()).name
        'demo'
        """
        try:
            found = json.loads(raw)
            report = cls(**found)
            numbers = (report.started, report.updated)
            texts = (report.name, report.place, report.state, report.error)
        except (TypeError, RecursionError) as error:
            raise ValueError("no report of a pipeline") from error
        are_flows = isinstance(report.flows, list) and all(isinstance(flow, dict) for flow in report.flows)
        if not are_flows or not all(type(n) is int for n in numbers) or not all(isinstance(t, str) for t in texts):
            raise ValueError("no report of a pipeline")
        return report
