"""The types that a key can hold: each declares itself with `@value_type` where its class is.

TYPE, SCAN TYPE, DUMP, snapshots, COPY, MEMORY USAGE and DEBUG DIGEST follow from the declaration (codec.py, digest.py).
`load_all` imports all modules of this package, so a new module needs no entry anywhere. A type in a user's module
declares itself in the same way.

Invariant: names and tags are unique. A tag is in every dump and snapshot that has such a value: it never changes.

Rejected: a table of all types in codec.py, because every new type would have to change that file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import penstock.types


class Value(Protocol):
    """What the class of every type offers.

    It may also have `copy()`, and `size_of_copy()` if a copy shares bytes with its original. Without them a copy is
    what `load` makes of `dump`.
    """

    def dump(self) -> bytes:
        """The whole value as bytes."""

    @classmethod
    def load(cls, data: bytes) -> Self:
        """The value that `dump` wrote; CorruptValue for anything else."""

    def size(self) -> int:
        """About how many bytes of memory it takes."""

    def check(self) -> None:
        """Assert every invariant; for tests."""


class ValueType(NamedTuple):
    """What `@value_type` declares."""

    name: str
    """The name that TYPE answers."""
    tag: int
    """The first byte of a dump, 1 to 255; 0 is a string."""
    kind: type[Any]
    collection: bool
    """Whether it has a length, so that a key without elements does not exist."""
    item_cost: int
    """The most bytes that an item of `pack_many` takes beyond its own after it is loaded."""
    items: int
    """Items of an element, if a repeated element would be dropped silently; else 0."""


TYPES: dict[int, tuple[str, type[Any]]] = {}
"""Name and class by tag."""
DECLARED: dict[type[Any], ValueType] = {}
COLLECTIONS: set[type[Any]] = set()

Kind = TypeVar("Kind", bound=Value)


def value_type(
    name: str, *, tag: int, collection: bool = False, item_cost: int = 176, items: int = 0
) -> Callable[[type[Kind]], type[Kind]]:
    """Declare a class as a type that a key can hold. The arguments are those of ValueType."""

    def declare(kind: type[Kind]) -> type[Kind]:
        if not 0 < tag < 256 or tag in TYPES:
            raise ValueError(f"the tag {tag} of the type '{name}' is not between 1 and 255, or is taken")
        if name == "string" or any(name == known for known, _ in TYPES.values()):
            raise ValueError(f"there is a type '{name}' already")
        TYPES[tag] = (name, kind)
        DECLARED[kind] = ValueType(name, tag, kind, collection, item_cost, items)
        if collection:
            COLLECTIONS.add(kind)
        return kind

    return declare


def withdraw(kind: type[Any]) -> None:
    """Remove a type, for tests and for a module that could not be loaded."""
    declared = DECLARED.pop(kind)
    del TYPES[declared.tag]
    COLLECTIONS.discard(kind)


def load_all() -> None:
    """Import every module of the package, which declares its type."""
    for module in pkgutil.walk_packages(penstock.types.__path__, "penstock.types."):
        if not module.name.rpartition(".")[2].startswith("_"):
            importlib.import_module(module.name)
