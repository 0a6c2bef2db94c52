"""Turns calls into a plan: packs and routes each call, and splits those that concern several nodes.

Invalid calls are refused here, before a byte is sent: keys of several slots, commands that would change the state of
an unknown connection, arguments that cannot be encoded. Position i in every list of a Plan is the i-th command on the
wire. `Plan.collect` joins the replies of a call that became several commands.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.client.cluster.errors import CrossSlotRefused, NotRoutable
from penstock.client.cluster.routing import NOT_IN_A_CLUSTER, CommandTable, Route, encoded
from penstock.client.cluster.slot_map import Address, SlotMap
from penstock.client.engine.command_kinds import Kind, kind_of, name_of, options_of, patience
from penstock.client.engine.encoding import Encoded, pack
from penstock.client.errors import NotEncodable
from penstock.protocol.slots import SLOTS, key_slot
from penstock.protocol.tuples import pack_tuple

LAST_SLOT = SLOTS - 1

Call = Sequence[Any]
Merge = Callable[[list[Any]], Any]

UNKEYED = -1
"""In the place of a slot: the command has no key. Such commands share a gate, so that their order is kept too."""


class Part(NamedTuple):
    """The commands that one call became."""

    first: int
    size: int
    merge: Merge


class Plan:
    """Commands, ready to be sent."""

    __slots__ = (
        "_calls",
        "_parts",
        "_routes",
        "_table",
        "commands",
        "has_unkeyed",
        "packed",
        "patience",
        "pinned",
        "raw",
        "repeats",
        "several",
        "slots",
    )

    def __init__(self, table: CommandTable, repeats: bool = True) -> None:
        self._table = table
        self.repeats = repeats
        """By the level at which it was handed over, what lost its reply may be sent again; the level now may still
        forbid it.
        """
        self.commands: list[Call] | Encoded = []
        self.packed: list[bytes] = []
        self.slots: list[int] = []
        self.several: set[int] = set()
        """Commands with more than one key."""
        self.pinned: dict[int, Address] = {}
        """Commands for a certain node, whatever their keys."""
        self.has_unkeyed = False
        self.patience: float | None = 0.0
        """Seconds that blocking commands may wait, all together; None is for ever."""
        self.raw: frozenset[int] = frozenset()
        """Commands whose replies are not decoded."""
        self._routes: dict[int, Route] = {}  # of commands with several keys, which are asked for again
        self._parts: dict[int, Part] = {}  # by call
        self._calls = 0

    def route(self, index: int) -> Route:
        """Keys and access; only asked for where there is a doubt about order."""
        known = self._routes.get(index)
        return known if known is not None else self._table.route(self.commands[index])

    def keep_raw(self, calls: Container[int]) -> None:
        """The replies to these calls are not decoded."""
        raw: list[int] = []
        position = 0
        for call in range(self._calls):
            size = self._parts[call].size if call in self._parts else 1
            if call in calls:
                raw += range(position, position + size)
            position += size
        self.raw = frozenset(raw)

    def collect(self, results: list[Any]) -> list[Any]:
        """One result a call, in call order."""
        if not self._parts:
            return results
        collected, position = [], 0
        for call in range(self._calls):
            part = self._parts.get(call)
            if part is None:
                collected.append(results[position])
                position += 1
                continue
            pieces = results[part.first : part.first + part.size]
            failed = next((piece for piece in pieces if isinstance(piece, Exception)), None)
            collected.append(failed if failed is not None else part.merge(pieces))
            position += part.size
        return collected

    # -- building -----------------------------------------------------------------------------------------------

    def add_all(self, calls: Sequence[Call], split: bool, slot_map: SlotMap) -> None:
        """Every call of a pipeline; the short way for commands of one key, well under a microsecond each."""
        if isinstance(calls, Encoded):
            self._add_encoded(calls)
            return
        if self._add_plain(calls):
            return
        singles = self._table.singles
        for arguments in calls:
            if not arguments or isinstance(arguments, str | bytes) or not isinstance(arguments[0], str | bytes):
                pack(arguments)  # which says what is wrong with it
            if not (arguments[0] in singles and len(arguments) > 1 and self._add_plain([arguments])):
                self.add(arguments, split, slot_map.masters)

    def _add_plain(self, calls: Sequence[Call]) -> bool:
        """Calls that are all of one key, the first argument, and need no closer look; False if one of them is not."""
        try:
            if not self._table.singles.issuperset({call[0] for call in calls}):
                return False
            packed = [piece for call in calls if (piece := pack_tuple(call)) is not None]  # type: ignore[arg-type]
            if len(packed) < len(calls):
                return False
            keys = [key.encode() if (key := call[1]).__class__ is str else encoded(key) for call in calls]
        except (TypeError, IndexError, UnicodeEncodeError):
            return False
        self.packed += packed
        self.slots += [crc_hqx(key, 0) & LAST_SLOT if b"{" not in key else key_slot(key) for key in keys]
        self._extend(calls)
        return True

    def _extend(self, calls: Sequence[Call]) -> None:
        assert isinstance(self.commands, list)
        self.commands += calls
        self._calls += len(calls)

    def _add_encoded(self, calls: Encoded) -> None:
        """Commands that are packed and have their slots; they are a plan of their own."""
        assert not self.packed
        self.packed, self.slots, self.commands = calls.wire, list(calls.slots), calls
        self._calls = len(calls)

    def add(self, arguments: Call, split: bool, masters: Sequence[Address]) -> None:
        """One call of any kind."""
        packed = pack(arguments)
        name = name_of(arguments)
        _refuse(arguments, name)
        on_all = _ON_ALL_MASTERS.get(name)
        if on_all is not None and masters:
            self.add_pinned(arguments, masters, on_all)
            return
        try:
            route = self._table.route(arguments)
        except CrossSlotRefused as refused:
            if not split or name not in _SPLITS:
                refused.args = (f"command {self._calls + 1}: {refused}",)
                raise
            self._add_split(arguments, name)
            return
        if len(route.keys) > 1:
            self.several.add(len(self.packed))
            self._routes[len(self.packed)] = route
        if kind_of(arguments) is Kind.BLOCKING:
            seconds = patience(arguments)
            self.patience = None if not seconds or self.patience is None else self.patience + seconds
        self._append(arguments, UNKEYED if route.slot is None else route.slot, packed)
        self._calls += 1

    def add_pinned(self, arguments: Call, nodes: Sequence[Address], merge: Merge) -> None:
        """One call for certain nodes, each of which gets it."""
        first = len(self.packed)
        for node in nodes:
            self.pinned[len(self.packed)] = node
            self._append(arguments, UNKEYED)
        self._part(first, merge)

    def add_on_lane(self, arguments: Call, is_watch: bool = False) -> None:
        """One call for the one node of a transaction; what would go to all nodes elsewhere goes to this one."""
        if not is_watch:
            _refuse(arguments, name_of(arguments))
        route = self._table.route(arguments)
        self._append(arguments, UNKEYED if route.slot is None else route.slot)
        self._calls += 1

    def _add_split(self, arguments: Call, name: str) -> None:
        """One command a slot, instead of one over several slots. Not atomic, which is why it must be asked for."""
        step = 2 if name == "MSET" else 1
        if (len(arguments) - 1) % step:
            raise NotEncodable(f"{name} needs a value for each key; {len(arguments) - 1} words are no pairs")
        by_slot: dict[int, list[int]] = {}
        for at in range(1, len(arguments), step):
            by_slot.setdefault(key_slot(encoded(arguments[at])), []).append(at)
        first = len(self.packed)
        for slot, places in by_slot.items():
            if len(places) > 1:
                self.several.add(len(self.packed))
            self._append((name, *(arguments[at + offset] for at in places for offset in range(step))), slot)
        orders = [at - 1 for places in by_slot.values() for at in places]
        self._part(first, _SPLITS[name](orders))

    def _append(self, arguments: Call, slot: int, packed: bytes | None = None) -> None:
        assert isinstance(self.commands, list)
        self.packed.append(packed or pack(arguments))
        self.slots.append(slot)
        self.commands.append(arguments)
        self.has_unkeyed = self.has_unkeyed or slot == UNKEYED

    def _part(self, first: int, merge: Merge) -> None:
        self._parts[self._calls] = Part(first, len(self.packed) - first, merge)
        self._calls += 1


def _refuse(arguments: Call, name: str) -> None:
    """Refuse commands that concern one connection without a name, and commands that no node of a cluster runs."""
    remedy = _REMEDIES.get(kind_of(arguments)) or _REMEDIES_BY_NAME.get(name)
    if name == "COPY" and _copies_to_another_database(arguments):
        name, remedy = "COPY with DB", "it has one database"
    if remedy is not None:
        raise NotRoutable(f"{name} makes no sense for a whole cluster: {remedy}")


def _copies_to_another_database(arguments: Call) -> bool:
    return any(
        word == "DB" and encoded(arguments[at + 1]) != b"0" for at, word in options_of(arguments[:-1], 3, {"DB": 1})
    )


_REMEDIES: Mapping[Kind, str] = {
    Kind.TRANSACTION: "use pipeline(strategy='single-slot', transaction=True)",
    Kind.STREAMING: "use pubsub() or a client of one node",
    Kind.SESSION: "it changes one connection of many; give it as an argument of Cluster, or use a client of one node",
}
_REMEDIES_BY_NAME = {
    **NOT_IN_A_CLUSTER,
    "SCAN": "use scan_iter(), or name a node (node=...)",
    "WAIT": "it counts what one connection has written; name a node (node=...)",
    "ASKING": "it is sent before each command that a node has asked to be sent elsewhere",
    "WAITAOF": "it counts what one connection has written; name a node (node=...)",
}


def _first(replies: list[Any]) -> Any:
    return replies[0]


def _joined(replies: list[Any]) -> list[Any]:
    return [item for reply in replies for item in reply]


def _everywhere(replies: list[Any]) -> list[int]:
    return [min(column) for column in zip(*replies, strict=True)]


# Listed by hand: no declaration says how to make one reply of several.
_ON_ALL_MASTERS: dict[str, Merge] = {
    "DBSIZE": sum,
    "KEYS": _joined,
    "SCRIPT EXISTS": _everywhere,
    **dict.fromkeys(["FLUSHALL", "FLUSHDB", "SCRIPT LOAD", "SCRIPT FLUSH", "CONFIG SET"], _first),
    **dict.fromkeys([f"FUNCTION {word}" for word in ("LOAD", "DELETE", "FLUSH", "RESTORE")], _first),
}


def _summed(orders: list[int]) -> Merge:
    return sum


def _in_order(orders: list[int]) -> Merge:
    """MGET: every value back to the place of its key."""

    def merge(replies: list[Any]) -> list[Any]:
        values = [None] * len(orders)
        for place, value in zip(orders, _joined(replies), strict=True):
            values[place] = value
        return values

    return merge


# Commands whose keys may be sent to several nodes; by hand for the same reason as _ON_ALL_MASTERS.
_SPLITS: dict[str, Callable[[list[int]], Merge]] = {
    "MGET": _in_order,
    "MSET": lambda orders: _first,
    **dict.fromkeys(("DEL", "UNLINK", "TOUCH", "EXISTS"), _summed),
}
