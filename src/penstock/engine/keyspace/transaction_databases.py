"""Which databases the commands of a transaction mean: SELECT and SWAPDB change that from one command to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.declarations import Argv

if TYPE_CHECKING:
    from penstock.engine.keyspace.databases import Database, Keyspace


class TransactionDatabases:
    """Which database a number means, and which one a client uses, in the course of a transaction."""

    def __init__(self, keyspace: Keyspace, current: Database) -> None:
        self._databases = keyspace.databases
        self._number = current.index
        self._swapped: dict[int, int] = {}

    @property
    def current(self) -> Database:
        return self._databases[self._swapped.get(self._number, self._number)]

    def named(self, word: bytes) -> Database | None:
        """None for what is no number of a database: the handler will refuse it."""
        number = self._to_number(word)
        return None if number is None else self._databases[self._swapped.get(number, number)]

    def after(self, name: str, argv: Argv) -> None:
        """A command has run that may mean another database by the same number.

        By name: no declaration says what a command does to the numbers of databases.
        """
        if name not in ("SELECT", "SWAPDB"):
            return
        numbers = [number for number in map(self._to_number, argv[1:3]) if number is not None]
        if name == "SELECT" and numbers:
            self._number = numbers[0]
        elif len(numbers) == 2:
            (one, other), swapped = numbers, self._swapped
            swapped[one], swapped[other] = swapped.get(other, other), swapped.get(one, one)

    def _to_number(self, word: bytes) -> int | None:
        try:
            number = int(word)
        except ValueError:
            return None
        return number if 0 <= number < len(self._databases) else None
