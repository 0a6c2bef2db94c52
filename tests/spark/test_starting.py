"""How Java starts for a run, and what an interrupt does meanwhile."""

from __future__ import annotations

import signal

import pytest

from penstock.spark.starting import _quick_java, signals_held


def test_java_has_its_better_compiler_if_it_stays_and_the_collector_that_the_user_chose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)
    assert _quick_java({}, stays=False) == ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    assert _quick_java({}, stays=True) == ["-XX:+UseSerialGC"]
    assert _quick_java({"spark.driver.extraJavaOptions": "-XX:+UseZGC"}, stays=True) == []
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseParallelGC")
    assert _quick_java({}, stays=False) == ["-XX:TieredStopAtLevel=1"]


def test_an_interrupt_waits_until_modules_are_imported() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt):
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            done.append("imports")
        done.append("more")
    assert done == ["imports"]
