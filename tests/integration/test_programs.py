"""Unmodified software from PyPI that was written for Redis, on our server, and on our client if it can be chosen."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import rq

from penstock import Client, Server

GUIDE = Path(__file__).parent.parent.parent / "docs" / "client.md"

TASKS = """
import celery
{preparation}

app = celery.Celery("tasks", broker={broker!r}, backend={backend!r})
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)


@app.task
def add(a, b):
    return a + b


@app.task(bind=True, max_retries=3)
def succeed_at_third(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return self.request.retries
"""


@pytest.fixture(params=[redis.Redis, Client], ids=["redis-py", "penstock"])
def client_class(request: pytest.FixtureRequest) -> type[redis.Redis]:
    found: type[redis.Redis] = request.param
    return found


@pytest.fixture
def client(ours: Server, client_class: type[redis.Redis]) -> Iterator[redis.Redis]:
    with client_class.from_url(ours.url) as found:
        found.flushall()
        yield found


def test_an_rq_worker_runs_jobs_and_keeps_their_results(client: redis.Redis) -> None:
    queue = rq.Queue("work", connection=client)
    jobs = [queue.enqueue("builtins.pow", number, 2) for number in range(20)]
    bad = queue.enqueue("operator.truediv", 1, 0)
    worker = rq.SimpleWorker([queue], connection=client)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert worker.work(burst=True)
    finally:
        for number, handler in handlers.items():  # the worker's own would stay
            signal.signal(number, handler)
    assert [job.latest_result().return_value for job in jobs] == [number**2 for number in range(20)]
    assert bad.latest_result().type == rq.results.Result.Type.FAILED
    assert queue.failed_job_registry.get_job_ids() == [bad.id]


def test_a_forking_rq_worker_waits_for_work_and_stops_on_request(ours: Server, client: redis.Redis) -> None:
    choice = ["--connection-class", f"{type(client).__module__}.{type(client).__name__}"]
    command = [sys.executable, "-m", "rq.cli", "worker", "--url", ours.url, "--burst", *choice, "slow"]
    queue = rq.Queue("slow", connection=client)
    job = queue.enqueue("time.sleep", 0.01)
    worker = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert worker.returncode == 0, worker.stderr
    assert job.get_status(refresh=True) == rq.job.JobStatus.FINISHED


def test_lock_lets_one_holder_in_at_a_time(client: redis.Redis) -> None:
    inside: list[int] = []
    most = 0

    def work(number: int) -> None:
        nonlocal most
        for _ in range(5):
            with client.lock("gate", timeout=10, blocking_timeout=30, sleep=0.002):
                inside.append(number)
                most = max(most, len(inside))
                inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    with pytest.raises(redis.exceptions.LockNotOwnedError):
        lock = client.lock("short", timeout=10)
        lock.acquire()
        client.delete("short")
        lock.release()


def test_a_watching_transaction_never_loses_an_update(
    ours: Server, client: redis.Redis, client_class: type[redis.Redis]
) -> None:
    client.set("balance", 0)

    def deposit(pipe: redis.client.Pipeline) -> None:
        balance = int(pipe.get("balance"))
        pipe.multi()
        pipe.set("balance", balance + 1)

    def work() -> None:
        with client_class.from_url(ours.url) as own:
            for _ in range(25):
                own.transaction(deposit, "balance")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.get("balance") == b"100"


def test_a_pipeline_answers_in_order_with_errors_in_place(client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(1000):
        pipe.set(f"key:{number}", number)
        pipe.incr(f"key:{number}")
    pipe.lpush("key:0", "x")
    replies = pipe.execute(raise_on_error=False)
    assert replies[1:2000:2] == list(range(1, 1001))
    assert isinstance(replies[-1], redis.ResponseError)


def celery_tasks(url: str, client_class: type[redis.Redis], directory: Path) -> None:
    """A module of tasks; on our client with the classes that docs/client.md shows."""
    if client_class is redis.Redis:
        (directory / "tasks.py").write_text(TASKS.format(preparation="", broker=url, backend=url))
        return
    (shown,) = re.findall(r"```python\n(import celery.+?)```", GUIDE.read_text(), re.DOTALL)
    (directory / "our_celery.py").write_text(shown)
    (alias,) = re.findall(r"`(kombu\.transport\.TRANSPORT_ALIASES.+?)`", GUIDE.read_text())
    (directory / "tasks.py").write_text(
        TASKS.format(
            preparation=f"import kombu.transport\n{alias}",
            broker=url.replace("redis://", "penstock://"),
            backend=f"our_celery.Backend+{url}",
        )
    )


def test_celery_runs_tasks_with_this_broker_and_backend(
    ours: Server, client_class: type[redis.Redis], tmp_path: Path
) -> None:
    with redis.Redis.from_url(ours.url) as client:
        client.flushall()
    celery_tasks(ours.url, client_class, tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "--loglevel", "WARNING",
            "--without-gossip"],
        env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    script = (
        "import penstock, tasks\n"
        f"ours = {client_class is Client}\n"
        "assert isinstance(tasks.app.backend.client, penstock.Client) == ours\n"
        "with tasks.app.connection_for_write() as connection, connection.default_channel.conn_or_acquire() as client:\n"
        "    assert isinstance(client, penstock.Client) == ours\n"
        "results = [tasks.add.delay(n, n) for n in range(10)]\n"
        "assert [r.get(timeout=60) for r in results] == [2 * n for n in range(10)]\n"
        "assert tasks.succeed_at_third.delay().get(timeout=60) == 2\n"
    )
    try:
        caller = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert caller.returncode == 0, caller.stderr
    finally:
        worker.terminate()
        output = worker.communicate(timeout=30)[0].decode()
    assert "Traceback" not in output, output


def test_a_client_that_asks_for_everything_gets_parsed_replies(client: redis.Redis) -> None:
    """What dashboards ask: each must parse in redis-py without surprises."""
    assert client.info()["redis_version"]
    assert client.config_get("max*")["maxclients"]
    assert client.command()["get"]["arity"] == 2
    assert client.client_list()[0]["name"] is not None
    assert client.slowlog_get() is not None
    assert client.time()[0] == pytest.approx(time.time(), abs=5)
    assert client.memory_usage("nothing") is None
