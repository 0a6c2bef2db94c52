"""`penstock demo`: a short guided tour of the server, checked as it goes.

Every step sends real commands to an embedded server and compares the reply with what the tour promises; the exit code
is 0 only if all of them held.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import redis
import typer
from rich.console import Console

Step = tuple[str, tuple[object, ...], Callable[[Any], bool]]


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo() -> None:
    """Show what the server does, in half a minute; asks nothing."""
    from penstock import Server

    console = Console(highlight=False)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        with Server(dir=folder, appendonly=True, appendfsync="always") as server:
            console.print(f"[bold]A Penstock server[/] is running inside this process: {server.url}")
            with redis.Redis.from_url(server.url, decode_responses=True) as client:
                for chapter, steps in _tour():
                    console.print(f"\n[bold cyan]{chapter}[/]")
                    wrong += sum(not _show(console, client, *step) for step in steps)
                wrong += not _blocking(console, server.url)
                wrong += not _messages(console, client, server.url)
        console.print("\n[bold cyan]It is still there after a restart[/]")
        with (
            Server(dir=folder, appendonly=True, appendfsync="always") as server,
            redis.Redis.from_url(server.url, decode_responses=True) as client,
        ):
            wrong += not _show(
                console, client, "every write above was on disk before its reply", ("GET", "visits"), "2".__eq__
            )
    if wrong:
        console.print(f"\n[bold red]{wrong} of the promises above did not hold.[/]")
        raise typer.Exit(1)
    console.print("\n[bold green]Everything above happened as promised.[/] Start your own: [bold]penstock serve[/]")


def _tour() -> Iterator[tuple[str, list[Step]]]:
    yield (
        "Strings and counters",
        [
            ("write", ("SET", "greeting", "hello"), lambda reply: reply is True or reply == "OK"),
            ("read", ("GET", "greeting"), "hello".__eq__),
            ("count", ("INCR", "visits"), (1).__eq__),
            ("count again", ("INCR", "visits"), (2).__eq__),
            (
                "a key that goes by itself",
                ("SET", "token", "secret", "EX", 60),
                lambda reply: reply is True or reply == "OK",
            ),
            ("seconds left", ("TTL", "token"), lambda reply: 58 <= reply <= 60),
        ],
    )
    yield (
        "Hashes, lists, sets, sorted sets",
        [
            ("a record", ("HSET", "user:1", "name", "Ada", "born", 1815), (2).__eq__),
            ("one field", ("HGET", "user:1", "name"), "Ada".__eq__),
            ("a queue", ("RPUSH", "jobs", "first", "second"), (2).__eq__),
            ("take from its head", ("LPOP", "jobs"), "first".__eq__),
            ("two sets", ("SADD", "admins", "ada", "bob"), (2).__eq__),
            ("", ("SADD", "online", "bob", "eve"), (2).__eq__),
            ("what they share", ("SINTER", "admins", "online"), lambda reply: set(reply) == {"bob"}),
            ("a ranking", ("ZADD", "scores", 10, "ada", 30, "bob", 20, "eve"), (3).__eq__),
            ("its top two", ("ZRANGE", "scores", 0, 1, "REV"), ["bob", "eve"].__eq__),
        ],
    )
    yield (
        "Streams: a log with offsets, groups and acknowledgements",
        [
            ("append", ("TWRITE", "clicks", "page:/", "first"), (1).__eq__),
            ("several at once", ("TWRITE", "clicks", "ENTRIES", "page:/a", "second", "page:/", "third"), (2).__eq__),
            ("from any offset", ("TREAD", "clicks", 2, 1), [[2, "page:/a", "second"]].__eq__),
            (
                "a group shares the work",
                ("TREAD", "clicks", 0, 2, "GROUP", "billing", "RETRY", 60000, 0),
                [[1, "page:/", "first"], [2, "page:/a", "second"]].__eq__,
            ),
            ("done with these", ("TACK", "clicks", "billing", "1-2"), (2).__eq__),
            ("the next ones", ("TREAD", "clicks", 0, 9, "GROUP", "billing"), [[3, "page:/", "third"]].__eq__),
        ],
    )
    yield "Scripts run on real Lua, atomically", [
        (
            "move an amount only if it is there",
            ("EVAL", "if tonumber(redis.call('get', KEYS[1])) >= 1 then return redis.call('decr', KEYS[1]) else return -1 end", 1, "visits"),
            (1).__eq__,
        ),
        ("", ("INCR", "visits"), (2).__eq__),
    ]  # fmt: skip
    yield (
        "Errors name the thing",
        [
            ("the wrong type", ("LPUSH", "greeting", "x"), lambda reply: str(reply).startswith("WRONGTYPE")),
            ("no such command", ("FLY", "away"), lambda reply: "unknown command" in str(reply)),
        ],
    )


def _show(
    console: Console, client: redis.Redis, what: str, argv: tuple[object, ...], right: Callable[[Any], bool]
) -> bool:
    """Send one command, print it with its reply, and say whether the reply is right."""
    try:
        reply: Any = client.execute_command(*argv)  # type: ignore[no-untyped-call]
    except redis.ResponseError as error:
        reply = error
    held = right(reply) is True
    mark = "[green]ok[/]" if held else "[red]NOT AS PROMISED[/]"
    command = " ".join(str(part) if len(str(part)) < 40 else str(part)[:37] + "..." for part in argv)
    console.print(f"  {mark} {command:58}", end="", markup=True)
    console.print(f" -> {reply!s:24} {what}", markup=False, style="dim")
    return held


def _blocking(console: Console, url: str) -> bool:
    """One client waits for an element; another pushes it."""
    console.print("\n[bold cyan]Clients can wait for work[/]")
    got: list[Any] = []

    def wait() -> None:
        with redis.Redis.from_url(url, decode_responses=True) as client:
            got.append(client.blpop(["inbox"], timeout=10))

    waiter = threading.Thread(target=wait)
    waiter.start()
    with redis.Redis.from_url(url, decode_responses=True) as client:
        client.rpush("inbox", "a letter")
    waiter.join()
    held = bool(got) and list(got[0]) == ["inbox", "a letter"]
    console.print(
        f"  {'[green]ok[/]' if held else '[red]NOT AS PROMISED[/]'} BLPOP inbox 10 in one client, RPUSH in another"
    )
    return held


def _messages(console: Console, client: redis.Redis, url: str) -> bool:
    """A subscriber gets what is published."""
    console.print("\n[bold cyan]Publish and subscribe[/]")
    with redis.Redis.from_url(url, decode_responses=True) as listener, listener.pubsub() as subscription:
        subscription.subscribe("news")
        subscription.get_message(timeout=5)
        receivers = client.publish("news", "it works")
        message = subscription.get_message(timeout=5)
    held = receivers == 1 and message is not None and message["data"] == "it works"
    console.print(
        f"  {'[green]ok[/]' if held else '[red]NOT AS PROMISED[/]'} PUBLISH news 'it works' reached {receivers} subscriber"
    )
    return held
