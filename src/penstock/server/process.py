"""`penstock serve`: a server that is the whole process, from its banner to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from pathlib import Path

import uvloop

from penstock import __version__
from penstock.engine.config import Config, ConfigError
from penstock.engine.module_loader import ModuleError
from penstock.protocol.errors import ReplyError
from penstock.server import logs
from penstock.server.app import App
from penstock.server.inner_loop import COMPILED
from penstock.storage.files import StorageError

logger = logging.getLogger("penstock.server")

INSISTENCE_SECONDS = 10
"""A second Ctrl-C within this time ends a server that cannot write its data."""
RETRY_SECONDS = 0.5
"""After this time a server of a shard that is to end tries again to write its data."""

BANNER = r"""
  ____   ___  ____   ___  _____  ___    ___  _  __
 |  _ \ / _ \|  _ \ / __||_   _|/ _ \  / __|| |/ /   Penstock {version}
 |  __/|  __/| | | |\__ \  | | | (_) || (__ |   <    Python {python}, process {pid}
 |_|    \___||_| |_||___/  |_|  \___/  \___||_|\_\   {where}
"""


def run(config: Config) -> int:
    """Serve until SIGTERM, SIGINT or SHUTDOWN; the process's exit code."""
    logs.configure(config)
    # Data is not cyclic garbage. With the default thresholds the collector would visit every stored object again and
    # again, which stalls the server. Cycles are rare, so it may run rarely.
    gc.set_threshold(50_000, 50, 1000)
    gc.freeze()
    try:
        return uvloop.run(_serve(config))
    except (OSError, ConfigError, StorageError, ModuleError) as error:
        logger.error("cannot start: %s", _words(error))
        return 1


def _words(error: Exception) -> str:
    """The error without its number, unless it names a file, which only the whole text does."""
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        return error.strerror
    return str(error)


async def _serve(config: Config) -> int:
    app = App(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _asked_to_stop, app, number)
        _interrupt_scripts(app, number)
    loop.add_signal_handler(signal.SIGHUP, _renew_certificates, app)
    await app.start()
    if app.stop_requested.is_set():
        await app.stop()
        logger.log(logs.NOTICE, "Asked to stop while loading: leaving everything on disk as it is")
        return 0
    if config.always_show_logo and config.log_format == "text":
        _show_banner(config, app)
    with _pidfile(config.pidfile):
        logger.log(logs.NOTICE, "The inner loop is %s", "compiled" if COMPILED else "plain Python")
        logger.log(logs.NOTICE, "Ready to accept connections on %s", ", ".join(app.addresses))
        await _until_it_may_stop(app)
        logger.log(logs.NOTICE, "Shutting down")
        await app.stop()
    logger.log(logs.NOTICE, "Bye")
    return 0 if app.persistence.closed_whole else 1


async def _until_it_may_stop(app: App) -> None:
    """Wait for SHUTDOWN, or for a signal at a moment when everything can be written; otherwise data would be lost."""
    while True:
        await app.stop_requested.wait()
        try:
            await app.shut_down()
        except ReplyError as error:
            if app.config.etcd:
                await _stop_without_the_rest(app, error)
                return
            logger.error(
                "the data cannot be written (%s), so the server goes on. When it can be, send the signal again; to end "
                "without it, press Ctrl-C (SIGINT) twice within %d seconds, or send SHUTDOWN FORCE",
                _why(error),
                INSISTENCE_SECONDS,
            )
            if app.stop_signal == signal.SIGINT:
                app.interrupt_refused_at = time.monotonic()
            app.stop_requested.clear()
        else:
            return


async def _stop_without_the_rest(app: App, error: ReplyError) -> None:
    """A server of a shard ends in time, whatever its disk does: other nodes have the data, or its operators decided
    that one is enough (`replica-acks 0`). What is not written is named.
    """
    seconds = app.config.shard_stop_timeout
    logger.error("the data cannot be written (%s): this server tries for %d seconds, and ends", _why(error), seconds)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, RETRY_SECONDS))
        try:
            await app.shut_down()
            return
        except ReplyError as again:
            error = again
    writer = app.persistence.aof.writer
    if writer is not None:
        logger.error(
            "ending, with %d bytes of changes that %s does not have (%s); no client was told that they are kept. "
            "Make room there, and start this node again",
            writer.waiting_bytes,
            writer.file.path,
            _why(error),
        )
    app.persistence.shut_down(save=None, force=True)


def _why(error: ReplyError) -> object:
    return error.__cause__ or error


def _interrupt_scripts(app: App, number: int) -> None:
    """The loop handles a signal only after a script, so inform the script too."""
    signal.signal(number, lambda *_: app.engine.scripting.interrupt())
    signal.siginterrupt(number, False)


def _asked_to_stop(app: App, number: int) -> None:
    """A second SIGTERM changes nothing, as with Redis: a program may send it twice. A second Ctrl-C is a user's."""
    was_refused = time.monotonic() - app.interrupt_refused_at < INSISTENCE_SECONDS
    if number == signal.SIGINT and (app.stop_requested.is_set() or was_refused):
        logger.warning("asked to stop a second time: leaving at once")
        os._exit(1)
    logger.log(logs.NOTICE, "Received %s", signal.Signals(number).name)
    app.stop_signal = number
    app.stop_requested.set()


def _renew_certificates(app: App) -> None:
    """SIGHUP, which a closed terminal sends too: then there is nothing new to read."""
    try:
        if any([app.listeners.renew_certificates(), app.metrics.renew_certificates()]):
            logger.log(logs.NOTICE, "Read the certificates for TLS again")
    except ConfigError as error:
        logger.error("the old certificates stay in use: %s", error)


def _show_banner(config: Config, app: App) -> None:
    text = BANNER.format(
        version=__version__,
        python=".".join(map(str, sys.version_info[:3])),
        pid=os.getpid(),
        where=", ".join(app.addresses),
    )
    sys.stdout.write(text.lstrip("\n") + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def _pidfile(path: str):  # type: ignore[no-untyped-def]
    try:
        if path:
            Path(path).write_text(f"{os.getpid()}\n")
    except OSError as error:
        logger.warning("cannot write the pidfile %s: %s", path, error.strerror)
        path = ""
    try:
        yield
    finally:
        if path:
            Path(path).unlink(missing_ok=True)
