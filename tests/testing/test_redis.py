"""Which redis-server tests and benchmarks compare with."""

from pathlib import Path

import pytest

from penstock.testing.redis import find_redis


def broken(folder: Path) -> Path:
    program = folder / "redis-server"
    program.write_text("#!/bin/sh\necho a library is missing >&2\nexit 127\n")
    program.chmod(0o755)
    return program


def test_a_redis_server_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = broken(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("PENSTOCK_REDIS_SERVER", raising=False)
    assert find_redis.__wrapped__().path not in ("", str(program))


def test_one_that_is_chosen_and_does_not_run_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_REDIS_SERVER", str(broken(tmp_path)))
    with pytest.raises(FileNotFoundError, match=r"PENSTOCK_REDIS_SERVER .* a library is missing"):
        find_redis.__wrapped__()
    monkeypatch.setenv("PENSTOCK_REDIS_SERVER", str(tmp_path / "nosuch"))
    with pytest.raises(FileNotFoundError, match="nosuch"):
        find_redis.__wrapped__()


def test_if_none_runs_the_remedy_is_told_with_the_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_REDIS_SERVER", raising=False)
    monkeypatch.setattr("penstock.testing.redis.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"put one on PATH, or .*; .*redis-server: a library is missing"):
        find_redis.__wrapped__()
