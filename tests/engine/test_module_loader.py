"""Loading modules: all of one or nothing of it, and errors that say what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.support.twins import pure_twin
from tests.support.waiting import wait_until

from penstock import Server
from penstock.engine.config import build
from penstock.engine.config_file import rewritten
from penstock.engine.declarations import REGISTRY
from penstock.engine.module_loader import ModuleError, load
from penstock.storage import blocks

GREETING = '''
from penstock.modules import Access, Flag, command, key

MODULE_VERSION = 3

@command("GREET", arity=2, flags=Flag.READONLY | Flag.FAST, keys=key(1, Access.READ), group="module", syntax="key")
def greet(session, argv):
    """Greet what is at a key."""
    return b"hello " + (session.db.find_string(argv[1]) or b"nobody")

@command("GREET.ALL SHOUT", arity=2, flags=Flag.READONLY, group="module")
def shout(session, argv):
    """Greet everybody."""
    return b"HELLO"
'''


@pytest.fixture(autouse=True)
def _own_commands() -> Iterator[None]:
    before = REGISTRY.saved()
    yield
    REGISTRY.restore(before)


def write(folder: Path, text: str, name: str = "greeting.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_file_is_loaded_with_all_its_commands(tmp_path: Path) -> None:
    path = write(tmp_path, GREETING)
    module = load(path)
    assert module == ("greeting", 3, path, ("GREET", "GREET.ALL SHOUT"))
    shout = REGISTRY.find([b"greet.all", b"shout"])
    assert shout is not None and shout.of_module
    assert load(path) is module


def test_a_dotted_name_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pkg_of_test").mkdir()
    write(tmp_path / "pkg_of_test", "", "__init__.py")
    write(tmp_path / "pkg_of_test", GREETING)
    monkeypatch.syspath_prepend(tmp_path)
    assert load("pkg_of_test.greeting").name == "pkg_of_test.greeting"
    assert b"GREET" in REGISTRY.by_name


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1", "declares no command"),
        ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        (GREETING + "\n1 / 0", "ZeroDivisionError"),
        (GREETING.replace('"GREET"', '"GET"'), "ValueError: GET is declared twice"),
        (GREETING.replace('"GREET.ALL SHOUT"', '"DEBUG SLEEP"'), "DEBUG SLEEP is declared twice"),
        (GREETING.replace('"""Greet everybody."""', ""), "GREET.ALL SHOUT needs a docstring"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_module_that_fails_leaves_nothing_behind(tmp_path: Path, text: str, reason: str) -> None:
    before = REGISTRY.saved()
    path = write(tmp_path, text)
    with pytest.raises(ModuleError, match="cannot load the module") as caught:
        load(path)
    assert reason in str(caught.value)
    assert REGISTRY.saved() == before
    write(tmp_path, GREETING)
    assert load(path).commands, "once it is corrected it loads"


def test_the_error_for_a_missing_module_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModuleError, match=r"there is no file .*nothing\.py"):
        load(str(tmp_path / "nothing.py"))
    with pytest.raises(ModuleError, match=r"finds no such module; give the path of a \.py file, or set PYTHONPATH"):
        load("nothing_of_that_name.at_all")


def test_the_directive_may_stand_on_several_lines_and_survives_a_rewrite() -> None:
    text = 'module one.two\nloadmodule "a b.py"\n'
    config = build(text, [("module", ["three"])])
    assert config.module == ["one.two", "a b.py", "three"]
    assert rewritten(text, config, []) == 'module one.two\nmodule "a b.py"\nmodule three\n'


IN_PROGRESS = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled")


# -- what a module leaves at its keys -------------------------------------------------------------------------

CARELESS = """
from penstock.modules import ALWAYS, OK, Access, Flag, Hash, List, Set, SortedSet, command, key

@command("CARELESS.EMPTY", arity=2, flags=Flag.WRITE | Flag.FAST, keys=key(1, Access.UPDATE), group="module")
def empty(session, argv):
    '''Remove all members.'''
    session.db.obtain(argv[1], Set).clear()
    session.db.changed(argv[1])
    return OK

@command("CARELESS.ASIDE", arity=2, flags=Flag.WRITE, keys=key(1, Access.UPDATE), group="module")
def aside(session, argv):
    '''The same, in a thread.'''
    return session.aside(ALWAYS, lambda: None, lambda _: empty(session, argv))

@command("CARELESS.FOREIGN", arity=2, flags=Flag.WRITE, keys=key(1, Access.WRITE), group="module")
def foreign(session, argv):
    '''Put something at a key that is no value.'''
    session.db.set(argv[1], {1, 2})
    return OK

@command("CARELESS.ELSEWHERE", arity=3, flags=Flag.WRITE, keys=key(1, Access.WRITE), group="module")
def elsewhere(session, argv):
    '''Put a dict, and a text, at keys that it does not declare.'''
    session.db.set(argv[2], {1: 2})
    session.db.set("name", b"v")
    return OK

@command("CARELESS.TEXT", arity=2, flags=Flag.WRITE, keys=key(1, Access.UPDATE), group="module")
def text(session, argv):
    '''Add elements that are not bytes to whatever collection there is, without a word.'''
    value = session.db.get(argv[1])
    if type(value) is List:
        value.append("text")
    elif type(value) is Hash:
        value[b"f2"] = "text"
    elif type(value) is SortedSet:
        value.scores["text"] = 1.0
    else:
        session.db.obtain(argv[1], Set).add("text")
    return OK

@command("CARELESS.LOG", arity=3, flags=Flag.WRITE, keys=key(1, Access.WRITE), group="module")
def log(session, argv):
    '''Log something else than what is done.'''
    session.db.set(argv[1], b"v")
    words = {b"unknown": [b"NOSUCH", argv[1]], b"number": [b"SET", argv[1], 5], b"read": [b"GET", argv[1]], b"none": []}
    session.log(words[argv[2]])
    return OK

@command("CARELESS.END", arity=2, flags=Flag.WRITE, keys=key(1, Access.WRITE), group="module")
def end(session, argv):
    '''End the program, as a library for command lines does.'''
    session.db.set(argv[1], b"half")
    raise SystemExit(3)

@command("CARELESS.HIDDEN", arity=1, flags=Flag.READONLY, group="module")
def hidden(session, argv):
    '''Put things where no look after the command finds them.'''
    data = session.db.data
    data[b"many"] = Set([b"%d" % number for number in range(2000)] + ["text"])
    data[b"foreign"] = {1: 2}
    data[b"alone"] = Set(["text"])
    data["name"] = b"v"
    return OK
"""


@pytest.mark.parametrize(
    "name", ["CARELESS.EMPTY", "CARELESS.ASIDE", "LAZY CARELESS.EMPTY", "ONCE c 1 1 CARELESS.ASIDE"]
)
def test_an_empty_collection_that_a_module_leaves_is_removed(tmp_path: Path, name: str) -> None:
    with (
        Server(module=write(tmp_path, CARELESS, "careless.py"), dir=str(tmp_path), appendonly="yes") as server,
        redis.Redis.from_url(server.url) as client,
    ):
        client.sadd("s", "a")
        client.execute_command(*name.split(), "s")
        assert client.exists("s") == 0
        client.execute_command("DEBUG", "LOADAOF")
        assert client.keys() == []


def test_a_handler_that_ends_the_program_is_an_error_and_its_log_can_be_read(tmp_path: Path) -> None:
    settings = {"module": write(tmp_path, CARELESS, "careless.py"), "dir": str(tmp_path), "appendonly": "yes"}
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        client.set("k", "v")
        for words in ("CARELESS.END", "EVAL return(redis.call('CARELESS.END',KEYS[1])) 1"):
            with pytest.raises(redis.ResponseError, match=r"SystemExit\(3\)"):
                client.execute_command(*words.split(), "end")
        client.execute_command("LAZY", "CARELESS.END", "end")
        wait_until(lambda: not server.call(lambda app: app.engine.lazy.pending))
        assert client.get("k") == b"v"
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        assert client.get("k") == b"v"


def test_what_the_log_could_not_be_read_with_is_an_error(tmp_path: Path) -> None:
    settings = {"module": write(tmp_path, CARELESS, "careless.py"), "dir": str(tmp_path), "appendonly": "yes"}
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        for words in ("unknown", "number", "read", "none"):
            with pytest.raises(redis.ResponseError, match="which is no command that writes, in bytes"):
                client.execute_command("CARELESS.LOG", "k", words)
        client.set("after", 1)
    with Server(**settings) as server, redis.Redis.from_url(server.url) as client:
        assert client.mget("after", "k") == [b"1", b"v"]


def test_an_invalid_value_is_removed_and_an_error(tmp_path: Path) -> None:
    with (
        Server(module=write(tmp_path, CARELESS, "careless.py")) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        with pytest.raises(redis.ResponseError, match=r"CARELESS\.FOREIGN put a set at a key; it was removed"):
            client.execute_command("CARELESS.FOREIGN", "k")
        assert client.exists("k") == 0
        assert client.save()


def test_an_invalid_value_at_a_key_that_is_not_declared_is_removed(tmp_path: Path) -> None:
    with (
        Server(module=write(tmp_path, CARELESS, "careless.py"), dir=str(tmp_path)) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        with pytest.raises(redis.ResponseError, match=r"CARELESS\.ELSEWHERE put a .*; it was removed"):
            client.execute_command("CARELESS.ELSEWHERE", "k", "other")
        assert client.keys() == []
        assert client.save()


@pytest.mark.parametrize("prefix", ["", "LAZY", "ONCE {client} 1 1"])
def test_elements_that_are_not_bytes_are_removed_and_an_error(tmp_path: Path, prefix: str) -> None:
    with (
        Server(module=write(tmp_path, CARELESS, "careless.py"), dir=str(tmp_path)) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        client.sadd("set", "a")
        client.rpush("list", "a")
        client.hset("hash", "f", "a")
        client.zadd("zset", {"a": 2})
        for key in ["set", "list", "hash", "zset", "new"]:
            words = [*prefix.format(client=key).split(), "CARELESS.TEXT", key]
            if "LAZY" in words:
                client.execute_command(*words)
                continue
            with pytest.raises(redis.ResponseError, match=r"an element that is not bytes into a .*; it was removed"):
                client.execute_command(*words)
        assert client.smembers("set") == {b"a"}
        assert client.lrange("list", 0, -1) == [b"a"]
        assert client.hgetall("hash") == {b"f": b"a"}
        assert client.zrange("zset", 0, -1) == [b"a"]
        assert client.exists("new") == 0
        assert client.save()


@pytest.mark.parametrize("how", ["SAVE", "BGSAVE", "BGREWRITEAOF"])
@pytest.mark.parametrize("pure", [False, True])
def test_what_cannot_be_saved_keeps_nothing_else_from_being_saved(
    tmp_path: Path, how: str, pure: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if pure:
        monkeypatch.setattr("penstock.storage.snapshot.write_database", pure_twin(blocks).write_database)
    log = "yes" if how == "BGREWRITEAOF" else "no"
    path = write(tmp_path, CARELESS, "careless.py")
    with Server(module=path, dir=str(tmp_path), appendonly=log) as server, redis.Redis.from_url(server.url) as client:
        client.set("before", "1")
        client.execute_command("CARELESS.HIDDEN")
        client.set("after", "2")
        client.execute_command(how)
        wait_until(lambda: "is written without what a module put there" in caplog.text)
        wait_until(lambda: not any(client.info("persistence")[f] for f in IN_PROGRESS))
        left_out = caplog.text
        client.execute_command("DEBUG", "LOADAOF") if log == "yes" else client.execute_command("DEBUG RELOAD", "NOSAVE")
        assert sorted(client.keys()) == [b"after", b"before", b"many"]
        assert client.scard("many") == 2000
    for key in ("b'many' (some elements)", "b'foreign' (dict)", "b'alone' (Set)", "'name' (the key is not bytes)"):
        assert key in left_out


# -- two servers in one process -------------------------------------------------------------------------------


def test_a_server_has_no_commands_of_modules_that_another_one_was_started_with(tmp_path: Path) -> None:
    text = GREETING.replace("GREET", "ALONE")
    with Server() as before, Server(module=write(tmp_path, text, "alone.py")) as owner, Server() as after:
        for url, has in ((before.url, False), (owner.url, True), (after.url, False)):
            with redis.Redis.from_url(url) as client:
                calls = [
                    ["ALONE", "k"], ["ALONE.ALL", "SHOUT"], ["ALONE.ALL", "HELP"],
                    ["EVAL", "return redis.call('ALONE', 'k')", 0], ["ACL", "DRYRUN", "default", "ALONE", "k"],
                ]  # fmt: skip
                for words in calls:
                    if has:
                        client.execute_command(*words)
                        continue
                    with pytest.raises(redis.ResponseError, match=r"(?i)unknown|not found"):
                        client.execute_command(*words)
                names = [name for name in client.command_list() if b"alone" in name.lower()]
                assert names == ([b"alone", b"alone.all", b"alone.all|help", b"alone.all|shout"] if has else [])
                assert bool(client.execute_command("COMMAND DOCS", "ALONE")) == has
                assert client.command_count() == len(client.command())
