"""`penstock init`: a small project that runs at once.

The files are copied from cli/template. The data of the server that `penstock run DIR` starts has a thousand clicks,
because a first run without messages would show nothing.
"""

from __future__ import annotations

import json
import random
import shlex
import shutil
import sys
import time
from importlib.resources import as_file, files
from pathlib import Path

import typer

CLICKS = 1000
PAGES = ("/", "/pricing", "/docs", "/docs/streams", "/blog")


def register(app: typer.Typer) -> None:
    app.command("init")(init)


def init(
    folder: Path = typer.Argument(..., metavar="DIR", help="A folder that does not exist yet, or is empty."),
) -> None:
    """Write a small pipeline project, with comments.

    `penstock run DIR` runs it.
    """
    from penstock.spark.problems import Problem, check_folder

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        print(f"penstock init: {folder} is there and is not an empty folder; name another", file=sys.stderr)
        raise typer.Exit(1)
    try:
        check_folder(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with as_file(files("penstock.cli") / "template") as template:
            shutil.copytree(template, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        spec = folder / "spark-pipeline.yml"
        name = json.dumps(folder.resolve().name, ensure_ascii=False)
        spec.write_text(spec.read_text(encoding="utf-8").replace("name: clicks\n", f"name: {name}\n"), encoding="utf-8")
        write_clicks(folder / ".penstock" / "server")
    except Problem as problem:
        print(f"penstock init: {problem}", file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:
        print(f"penstock init: cannot write to {folder}: {error.strerror or error}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"A project is in {folder}, with {CLICKS:,} clicks to begin with. Next:\n")
    print(f"    penstock run {shlex.quote(str(folder))}\n")
    print(f"{folder}/README.md explains the files and the next steps.")


def write_clicks(data: Path) -> None:
    """Write clicks of the last ten minutes to the data folder of the project's own server."""
    import redis

    from penstock import Server

    data.mkdir(parents=True)
    chance = random.Random(1)
    start = time.time() - 600
    words: list[str] = []
    for number in range(CLICKS):
        page = chance.choice(PAGES)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start + 600 * number / CLICKS))
        words += (
            page,
            json.dumps({"at": at, "page": page, "user": chance.randrange(100), "ms": chance.randrange(20, 2000)}),
        )
    with Server(dir=data, appendonly=True) as server, redis.Redis.from_url(server.url) as client:
        client.execute_command("TWRITE", "clicks", "ENTRIES", *words)
