"""`penstock serve`: directives from a file and from the command line, then the server."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from penstock.cli.secrets import blank_environment, from_environment
from penstock.engine.config import Config, ConfigError, build, parse_file, read_file
from penstock.engine.directives import DIRECTIVES
from penstock.engine.keyspace.allocators import share_heap
from penstock.engine.leadership import AGENT

USAGE = "penstock serve [FILE.conf] [--DIRECTIVE VALUE ...]"


def run(words: list[str]) -> int:
    """Run a server with the words of a command line; the exit code."""
    if "-h" in words or "--help" in words:
        print(help_text())
        return 0
    given, environment = list(words), dict(os.environ)
    try:
        config = configure(words, os.environ)
        blank_environment()
        _check_shard(config)
        if config.etcd and AGENT not in environment:
            return _run_agent(config, given, environment)
        share_heap()  # before Arrow is imported, which starts threads
        if not config.module:
            _import_arrow_without_numpy()
        from penstock.server import process  # here, so that --help does not load the server

        return process.run(config)
    except ConfigError as error:
        print(f"penstock serve: {error}", file=sys.stderr)
        return 1


def _import_arrow_without_numpy() -> None:
    """Arrow imports numpy, where it is installed, for conversions that a server has no use for: a third of the CPU time
    of a start, and 6 MB. A user's module may want them.
    """
    hidden: Any = sys.modules  # None in it means that there is no such module
    hidden.setdefault("numpy", None)
    try:
        import pyarrow.compute  # noqa: F401
    finally:
        if hidden["numpy"] is None:
            del hidden["numpy"]


def _check_shard(config: Config) -> None:
    """ConfigError for a server that is meant to be in a shard, and would be in none."""
    for name in ("shard", "node"):
        if config[name] and not config.etcd:
            raise ConfigError(f"{name} needs etcd, which decides which server of a shard leads. Add --etcd URLS")


def _run_agent(config: Config, words: list[str], environment: dict[str, str]) -> int:
    """Run the same command line again as a child, under an agent that asks etcd what it is to do."""
    from penstock.server import logs
    from penstock.shard.agent import Agent
    from penstock.shard.settings import check_settings, etcd_address, place_of

    check_settings(config)
    address, place = etcd_address(config), place_of(config)
    logs.configure(config)
    command = [sys.executable, "-m", "penstock", "serve", *words]

    async def work() -> int:
        return await Agent(config, address, place, command, environment).run()

    return asyncio.run(work())


def configure(words: list[str], environment: MutableMapping[str, str]) -> Config:
    """The Config of a command line, as redis-server reads one: a file first, then --name value [value ...].

    --name=value will do, too, as for every other subcommand, and so will a whole line in one word ('--save 60 1').
    Secrets may come from the environment, which wins over the file.
    """
    file = None if not words or words[0].startswith("--") else words.pop(0)
    directives: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if " " in name:
                directives += [(name, values) for _, name, values in parse_file(word[2:], "command line: ")]
            else:
                directives.append((name, [value] if equals else []))
        elif not directives:
            raise ConfigError(f"command line: expected --directive, got '{word}'. Usage: {USAGE}")
        else:
            directives[-1][1].append(word)
    text = read_file(file) if file is not None else None
    try:
        config = build(text, [*from_environment(environment), *directives])
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}" if file and str(error).startswith("line ") else str(error)) from None
    config.file = str(Path(file).resolve()) if file else None
    return config


def help_text() -> str:
    """Every directive with its default, from the table."""
    lines = [
        f"Usage: {USAGE}",
        "",
        "Run a server until SIGTERM, SIGINT or SHUTDOWN. Directives may stand in the file, one a line (port 7000),",
        "and on the command line (--port 7000), which wins. Other users of the machine",
        "can see the command line, so give secrets in the environment: PENSTOCK_REQUIREPASS and",
        "PENSTOCK_TLS_KEY_FILE_PASS hold the values, the same names with _FILE the paths of files with the values.",
        "",
        "Examples:",
        "  penstock serve",
        "  penstock serve --port 7000 --dir /var/lib/penstock --appendonly yes --appendfsync always",
        "  penstock serve penstock.conf --loglevel debug",
        "",
        "Directives:",
    ]
    for directive in DIRECTIVES.values():
        lines.append(f"  --{directive.name} <{directive.kind.name}>")
        lines.append(f"        {directive.help} Default: {directive.default_text}")
    return "\n".join(lines)
