"""Sessions, blocked commands and threads that are informed when a key changes. Owned by the loop thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from penstock.engine.blocking import Waiter
    from penstock.engine.session import Session


class Observers:
    """The observers of one key."""

    __slots__ = ("waiters", "watchers")

    def __init__(self) -> None:
        self.watchers: set[Session] = set()  # sessions that WATCH the key
        self.waiters: dict[Waiter, None] = {}  # blocked commands, first come first

    def __bool__(self) -> bool:
        return bool(self.watchers or self.waiters)


class ChangedNames:
    """The names of the keys of a database that change while this object exists."""

    __slots__ = ("__weakref__", "names")

    def __init__(self) -> None:
        self.names: set[bytes] = set()


ANY_KEY: Any = None
"""An entry of ObservedKeys that is no key. While it is there, every change is noted."""


class ObservedKeys(dict[bytes, Observers]):
    """The observers of each key of a database. Invariant between commands: no key has observers that are empty."""

    def __init__(self) -> None:
        super().__init__()
        self._noted_in: WeakSet[ChangedNames] = WeakSet()

    def note_changes(self) -> ChangedNames:
        """An object that gets the names of changed keys from now on, until the caller drops it."""
        changed = ChangedNames()
        self._noted_in.add(changed)
        self[ANY_KEY] = Observers()
        return changed

    def note(self, key: bytes) -> None:
        """A key has changed while ANY_KEY is there."""
        noted_in = list(self._noted_in)
        for changed in noted_in:
            changed.names.add(key)
        if not noted_in:
            del self[ANY_KEY]

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
