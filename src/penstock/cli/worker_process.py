"""One process of `penstock worker`: loads the handler, consumes until it is asked to stop, and reports what it did.

Its standard input is a pipe from the parent: when that ends, the parent is gone, and this process stops as if asked to.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

CANNOT_LOAD, REFUSED = 64, 65
"""Exit codes: the handler cannot be loaded, or not on these terms; the server refuses."""
_REPORT = 0.5


class NotLoaded(Exception):
    """The name of a handler leads nowhere."""


def load(name: str) -> Callable[[Any], Any]:
    """The function that `package.module:function` names, which may be below the current folder."""
    module, _, path = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        is_it = missing is not None and f"{module}.".startswith(f"{missing}.")
        # Otherwise the user's code was there and has failed: a trace says where.
        raise NotLoaded(f"cannot load {name}: {type(error).__name__}: {error}") from None if is_it else error
    try:
        for part in path.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise NotLoaded(f"cannot load {name}: {error}") from None
    if not callable(found):
        raise NotLoaded(f"{name} is not a function but {found!r}")
    handler: Callable[[Any], Any] = found
    return handler


def _in_users_files(error: BaseException | None) -> BaseException | None:
    """An error with that part of its traceback that is not about importing; None if there is no other."""
    trace = error.__traceback__ if error is not None else None
    while trace is not None and ("importlib" in (file := trace.tb_frame.f_code.co_filename) or file == __file__):
        trace = trace.tb_next
    return None if error is None or trace is None else error.with_traceback(trace)


def _report(consumer: Any, pipe: int, over: threading.Event) -> None:
    while True:
        is_last = over.wait(_REPORT)
        counts = {**dataclasses.asdict(consumer.counts), "held": consumer.held, "waiting": int(consumer.is_waiting)}
        try:
            os.write(pipe, json.dumps(counts).encode() + b"\n")
        except BlockingIOError:
            pass
        except OSError:
            return
        if is_last:
            return


def _stop_with_parent(consumer: Any) -> None:
    while os.read(0, 4096):  # not sys.stdin: its lock would be held at the end of the interpreter
        pass
    consumer.stop()


def _look_after(consumer: Any, pipe: int) -> tuple[threading.Event, threading.Thread]:
    over = threading.Event()
    reporter = threading.Thread(target=_report, args=(consumer, pipe, over), daemon=True)
    reporter.start()
    threading.Thread(target=_stop_with_parent, args=(consumer,), daemon=True).start()
    return over, reporter


def consume(spec: dict[str, Any], handler: Callable[[Any], Any], pipe: int) -> None:
    """Until SIGTERM."""
    from penstock.client.api.sync import Client

    with Client.from_url(spec["url"]) as client:
        consumer = client.consumer(spec["stream"], spec["group"], **spec["terms"])
        over, reporter = _look_after(consumer, pipe)
        try:
            consumer.run(handler, **spec["how"])
        finally:
            over.set()
            reporter.join(1)


async def aio_consume(spec: dict[str, Any], handler: Callable[[Any], Any], pipe: int) -> None:
    """The same, for a coroutine function."""
    from penstock.client.api.aio import Client

    async with Client.from_url(spec["url"]) as client:
        consumer = client.consumer(spec["stream"], spec["group"], **spec["terms"])
        over, reporter = _look_after(consumer, pipe)
        try:
            await consumer.run(handler, **spec["how"])
        finally:
            over.set()
            await asyncio.to_thread(reporter.join, 1)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which passes it on
    import logging

    import redis

    from penstock.client.consumer.handlers import is_coroutine

    number = os.environ["PENSTOCK_WORKER_NUMBER"]
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s worker {number} %(levelname)s %(message)s")
    spec = json.loads(os.environ.pop("PENSTOCK_WORKER"))
    spec["terms"]["name"] = f"{socket.gethostname()}-{os.getpid()}"
    pipe = int(sys.argv[1])
    os.set_blocking(pipe, False)
    try:
        handler = load(spec["handler"])
    except NotLoaded as error:
        logging.getLogger("penstock.worker").error("%s", error, exc_info=_in_users_files(error.__cause__))
        return CANNOT_LOAD
    try:
        if is_coroutine(handler):
            asyncio.run(aio_consume(spec, handler, pipe))
        else:
            consume(spec, handler, pipe)
    except redis.RedisError as error:
        logging.getLogger("penstock.worker").error("the server refuses: %s", error)
        return REFUSED
    except (TypeError, ValueError) as error:  # no error of the handler: those are about one message
        logging.getLogger("penstock.worker").error("cannot run %s: %s", spec["handler"], error)
        return CANNOT_LOAD
    return 0


if __name__ == "__main__":
    sys.exit(main())
