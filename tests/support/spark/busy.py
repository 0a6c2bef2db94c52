"""Trying again what failed only because the machine is busy: Spark gives a Python process ten seconds to start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import PySparkException

BUSY = "Python worker failed to connect back"
T = TypeVar("T")


def patiently(call: Callable[[], T]) -> T:
    """The result of a call, which is made again as long as one of Spark's own processes was too slow to start."""
    while True:
        try:
            return call()
        except PySparkException as error:
            if BUSY not in str(error):
                raise
