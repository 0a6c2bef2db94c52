"""Runs the commands of the log again: at the start of a server, and on a replica as they come."""

from __future__ import annotations

import logging
from pathlib import Path

from penstock.engine.declarations import REGISTRY, Argv, Command, Flag, Handler
from penstock.engine.dispatch import Engine
from penstock.engine.keyspace.databases import Database
from penstock.engine.observe.monitors import in_short
from penstock.engine.run_handler import REPLAY, handler_for
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError
from penstock.storage.files import StorageError

logger = logging.getLogger("penstock.storage")


class Replay:
    """Commands of one log, in order. `engine.loading` must be set while they run."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._session = Session.of_server(engine)
        self.failed: list[str] = []  # why commands failed
        self._plain: dict[bytes, Handler] = {}  # those that came before, but for subcommands, MULTI, EXEC and SELECT

    @property
    def database(self) -> Database:
        """Where the next command runs, unless it is SELECT."""
        return self._session.db

    def run(self, path: Path, offset: int, commands: list[Argv]) -> None:
        """Run commands of a batch. MULTI and EXEC only mark what belongs together, which the batch keeps.

        StorageError, with the path and the offset, if one cannot be run here: then none of them was.
        """
        engine, session = self._engine, self._session
        try:
            plain = self._plain
            found = [(plain[argv[0]], argv) for argv in commands]
        except KeyError:
            found = [(handler_for(command, REPLAY), argv) for command, argv in self._find(path, offset, commands)]
        if engine.workers.jobs:
            engine.lock_gate.spare_all_readers(session.db, self._find(path, offset, commands))
        for handler, argv in found:
            try:
                handler(session, argv)
            except ReplyError as error:  # a LAZY command is logged before it fails; or a key expired before it
                self.failed.append(f"{error} ({argv[0].decode('utf-8', 'replace')})")
            except Exception as error:  # a bug of ours, which did not end the server at that time either
                if self._lacks_words(argv):
                    self.failed.append(f"wrong number of arguments ({argv[0].decode('utf-8', 'replace')})")
                    continue
                logger.exception("internal error in %r, replayed from %s", in_short(argv), path, exc_info=error)
                self.failed.append(f"{error!r} ({argv[0].decode('utf-8', 'replace')})")

    def _lacks_words(self, argv: Argv) -> bool:
        """Whether no server has written this. Asked when a command failed: to ask all of them would take time."""
        command = self._engine.commands.find(argv)
        return command is not None and not command.low <= len(argv) <= command.high

    def meets_locks(self, path: Path, offset: int, commands: list[Argv]) -> bool:
        """Whether threads read what these commands would change. StorageError as in `run`."""
        engine = self._engine
        if not engine.workers.jobs:
            return False
        return engine.lock_gate.meets_locks(self._session.db, self._find(path, offset, commands))

    def _find(self, path: Path, offset: int, commands: list[Argv]) -> list[tuple[Command, Argv]]:
        """Look each command up, with all that can be wrong with it."""
        by_name, known = REGISTRY.by_name, self._engine.commands
        multi, execute, select = by_name[b"MULTI"], by_name[b"EXEC"], by_name[b"SELECT"]
        found: list[tuple[Command, Argv]] = []
        for argv in commands:
            command = by_name.get(argv[0])
            if command is None or command.subcommands or command.of_module:
                command = known.find(argv)
                is_plain = False
            else:
                is_plain = command is not select and command is not multi and command is not execute
            if command is None:
                name = argv[0].decode("utf-8", "replace")
                raise StorageError(path, offset, f"the command {name} is unknown", "Load the module it is from")
            if not _may_be_logged(command):
                name = command.name
                raise StorageError(path, offset, f"a log does not hold {name}, which would concern this server")
            if is_plain:
                self._plain[argv[0]] = handler_for(command, REPLAY)
            if command is select:
                self._check_database(path, offset, argv)
            if command is not multi and command is not execute:
                found.append((command, argv))
        return found

    def _check_database(self, path: Path, offset: int, argv: Argv) -> None:
        """Check that the database of the following commands exists."""
        if len(argv) == 2 and argv[1].isdigit() and int(argv[1]) >= len(self._engine.keyspace):
            raise StorageError(path, offset, f"there is no database {int(argv[1])} here", "Raise `databases`")


def _may_be_logged(command: Command) -> bool:
    """Whether a log may hold it: what concerns data, and nothing that a server or a connection would obey."""
    concerns_data = bool(command.flags & (Flag.WRITE | Flag.READONLY | Flag.MAY_REPLICATE))
    is_known = command.group in ("scripting", "once") or command.name in ("SELECT", "MULTI", "EXEC")
    return concerns_data or is_known or command.of_module
