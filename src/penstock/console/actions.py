"""Changes that users can make. Each action runs under the user's own login, and is logged with its outcome (app.py).

An action says in one sentence what it did; the page shows that sentence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.client import dead_letters
from penstock.client.dead_letters import CannotPutBack, Plan
from penstock.console.action_log import LONGEST
from penstock.console.errors import Missing, Wrong
from penstock.console.json_bytes import cut
from penstock.console.request_context import RequestContext
from penstock.console.views.previews import target_of

TRIES = 5
MOST_LETTERS = 100_000
LARGEST_ENTRY = 2 << 20


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an action: a sentence for the user, and details for the log."""

    text: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    title: str
    """In the log."""
    run: Callable[[RequestContext], Awaitable[Done]]

    def target(self, context: RequestContext) -> str:
        return cut(context.given.key(), LONGEST) if context.given.has("key") else ""


async def write(context: RequestContext) -> Done:
    given = context.given
    key, tag, entry = given.key(), given.text("tag", "").encode(), given.text("entry", "").encode()
    if len(entry) > LARGEST_ENTRY:
        raise Wrong(f"An entry that is written here has at most {LARGEST_ENTRY >> 20} MB.")
    delay = given.number("delay", 0, most=366 * 86_400_000)
    options = ("DELAY", delay) if delay else ()
    offset = await context.login.call("TWRITE", key, *options, "ENTRIES", tag, entry)
    detail = {"offset": offset, "bytes": len(entry)}
    if offset is None:
        return Done("The entry does not fit the stream's schema: it went to the dead letters.", detail)
    return Done(f"Written at offset {offset:,}.", detail)


async def move_group(context: RequestContext) -> Done:
    given, key, group = context.given, context.given.key(), context.given.key("group")
    if not group:
        raise Wrong("A group has a name.")
    info = await context.login.stream(key)
    offset = await target_of(context.login, key, given, info)
    await context.login.call("TGROUP", "SET", key, group, offset)
    return Done(f"The group {cut(group)} goes on at offset {offset:,}.", {"group": cut(group), "offset": offset})


async def delete_group(context: RequestContext) -> Done:
    group = context.given.key("group")
    if not await context.login.call("TGROUP", "DEL", context.given.key(), group):
        raise Missing("There is no such group.")
    return Done(f"The group {cut(group)} is deleted.", {"group": cut(group)})


async def retain(context: RequestContext) -> Done:
    given = context.given
    count, age, size = (given.number(name, 0) for name in ("count", "age", "bytes"))
    compact = "yes" if given.text("compact", "no") == "yes" else "no"
    await context.login.call(
        "TRETAIN", given.key(), "COUNT", count, "AGE", age, "BYTES", size, "COMPACT", compact
    )  # fmt: skip
    return Done("The retention is changed.", {"count": count, "age": age, "bytes": size, "compact": compact})


async def put_back(context: RequestContext) -> Done:
    """One letter: `offset`; or all that are left."""
    given, login, key = context.given, context.login, context.given.key()
    bounds, *_ = await login.call("TREAD", key, 1, 0, "WITHINFO")
    first, last = bounds
    if given.has("offset"):
        offset = given.number("offset")
        await _transaction(context, key, partial(dead_letters.single, key, offset, first))
        return Done(f"The message of letter {offset:,} is put back.", {"offset": offset, "letters": 1})
    skip = given.text("skip", "no") == "yes"
    place = first
    count = skipped = 0
    while place <= last and count < MOST_LETTERS:
        steps = partial(dead_letters.replay, key, place, (first, last), dead_letters.AT_ONCE, skip)
        plan = await _transaction(context, key, steps)
        count += sum(len(messages) for messages in plan.targets.values())
        skipped += len(plan.skipped)
        place = plan.end
    passed = f" {skipped:,} were passed over." if skipped else ""
    noun = "message is" if count == 1 else "messages are"
    return Done(f"{count:,} {noun} put back.{passed}", {"letters": count, "skipped": skipped})


async def end_client(context: RequestContext) -> Done:
    number = context.given.number("id")
    if not await context.login.call("CLIENT", "KILL", "ID", number):
        raise Missing("This client is gone already.")
    return Done(f"The connection of client {number} is ended.", {"id": number})


async def empty_slow_log(context: RequestContext) -> Done:
    await context.login.call("SLOWLOG", "RESET")
    return Done("The slow log is empty.")


async def delete_key(context: RequestContext) -> Done:
    key = context.given.key()
    if not await context.login.call("UNLINK", key):
        raise Missing("There is no such key.")
    return Done(f"{cut(key)} is deleted.")


async def expire_key(context: RequestContext) -> Done:
    key, seconds = context.given.key(), context.given.number("seconds", 0, most=10**10)
    if seconds:
        if not await context.login.call("PEXPIRE", key, seconds * 1000):
            raise Missing("There is no such key.")
        return Done(f"{cut(key)} expires in {seconds:,} s.", {"seconds": seconds})
    await context.login.call("PERSIST", key)
    return Done(f"{cut(key)} does not expire.", {"seconds": 0})


async def _transaction(context: RequestContext, key: bytes, steps: Callable[[], dead_letters.Steps]) -> Plan:
    made: list[Plan] = []

    def plan() -> dead_letters.Steps:
        made.append((yield from steps()))
        return made[-1].commands()

    for _ in range(TRIES):
        try:
            if await context.login.change(key, plan) is not None:
                return made[-1]
        except CannotPutBack as error:
            raise Wrong(f"{str(error)[0].upper()}{str(error)[1:]}.") from None
    raise Wrong("The stream of dead letters changes all the time; try again.")
