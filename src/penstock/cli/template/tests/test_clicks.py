"""A test of this project, with a server and Spark of its own:  pip install pytest; pytest tests"""

from pathlib import Path
from typing import Any

from penstock.testing.pipeline import pipeline, spark_session

__all__ = ["pipeline", "spark_session"]  # fixtures

PROJECT = Path(__file__).parents[1]


def click(page: str, user: int, ms: int) -> dict[str, Any]:
    return {"at": "2026-01-01T12:00:00Z", "page": page, "user": user, "ms": ms}


def test_slow_clicks_go_to_a_stream_and_pages_are_counted(pipeline: Any) -> None:
    project = pipeline(PROJECT)
    project.feed("clicks", click("/", 1, 20), click("/", 2, 1900), click("/docs", 1, 30))
    assert project.run()["clicks"] == 3
    assert [each["user"] for each in project.stream("slow_clicks")] == [2]
    assert project.table("pages", "page", "clicks", "users") == [
        {"page": "/", "clicks": 2, "users": 2},
        {"page": "/docs", "clicks": 1, "users": 1},
    ]
    project.feed("clicks", click("/docs", 3, 40))
    assert project.run()["clicks"] == 1, "a second run reads only what is new"
    assert project.table("pages", "page", "clicks")[1] == {"page": "/docs", "clicks": 2}
