"""How Java starts for a run, and what an interrupt does meanwhile."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from penstock.spark.pipeline_session import PipelineSession
from penstock.spark.problems import Problem, RunFailed
from penstock.spark.starting import StartingSpark, _quick_java, signals_held


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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("kill -9 $$", "was ended by SIGKILL, perhaps because memory was short"),
        ("exit 143", "was ended by SIGTERM"),
        ("exit 52", "ended with exit code 52: java.lang.OutOfMemoryError: Java heap space"),
    ],
)
def test_how_java_ended_is_told(tmp_path: Path, command: str, said: str) -> None:
    spark = StartingSpark.__new__(StartingSpark)
    spark.log = tmp_path / "spark.log"
    spark.log.write_text(
        "java.io.IOException: first\n\tat a.b\njava.lang.OutOfMemoryError: Java heap space\n\tat c.d\n"
    )
    with subprocess.Popen(["sh", "-c", command]) as spark.process:
        assert spark.how_it_ended() == f"Spark's Java process {said}"


@pytest.mark.parametrize(
    ("cause", "waits"), [(ConnectionResetError("reset"), True), (FileNotFoundError("none"), False)]
)
def test_only_an_error_of_a_connection_is_waited_upon_to_learn_whether_java_ends(
    cause: Exception, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in a project, such as a file that it does not find, is told at once."""
    spark = StartingSpark.__new__(StartingSpark)
    looks = []
    monkeypatch.setattr(spark, "ends", lambda: bool(looks.append("ends")))
    session = PipelineSession.__new__(PipelineSession)
    session._starting = spark
    with subprocess.Popen(["sleep", "60"]) as spark.process:
        with pytest.raises(Problem), session.its_end_is_told():
            raise Problem from cause
        assert bool(looks) == waits
        spark.process.kill()
        spark.process.wait()
        with pytest.raises(RunFailed, match="SIGKILL"), session.its_end_is_told():
            raise Problem from cause
