"""Sessions and blocked commands that are told when a key changes. Owned by the loop thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.engine.blocking import Waiter
    from penstock.engine.session import Session


class Observers:
    """Who wants to know that one key changed."""

    __slots__ = ("waiters", "watchers")

    def __init__(self) -> None:
        self.watchers: set[Session] = set()  # sessions that WATCH the key
        self.waiters: dict[Waiter, None] = {}  # blocked commands, first come first

    def __bool__(self) -> bool:
        return bool(self.watchers or self.waiters)


class ObservedKeys(dict[bytes, Observers]):
    """The observers of each key of a database. Invariant between commands: no key has observers that are empty."""

    def of(self, key: bytes) -> Observers:
        """The observers of a key, made if there are none; drop empty ones with `forget`."""
        found = self.get(key)
        if found is None:
            found = self[key] = Observers()
        return found

    def forget(self, key: bytes) -> None:
        """Drop the observers of a key if there are none left."""
        if key in self and not self[key]:
            del self[key]
