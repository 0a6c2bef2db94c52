"""CONFIG, on ours and on a real Redis."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.replies import error_of

from penstock import Server
from penstock.cli import serve
from penstock.engine import config_file
from penstock.engine.config import Config, ConfigError, build
from penstock.engine.config_file import rewritten
from penstock.engine.directives import find_directive
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.protocol.resp import OK


@pytest.fixture
def restored(r: redis.Redis) -> Iterator[redis.Redis]:
    """A client whose changes to a few directives are taken back."""
    names = ("maxmemory", "hz", "timeout", "slowlog-max-len")
    before = {name: r.config_get(name)[name] for name in names}
    yield r
    for name, value in before.items():
        r.config_set(name, value)


@pytest.mark.since("7.0")
def test_get_takes_several_patterns_and_old_names(r: redis.Redis) -> None:
    assert r.config_get("MAXMEMORY", "slowlog-*", "no-such-thing").keys() == {
        "MAXMEMORY", "slowlog-log-slower-than", "slowlog-max-len",
    }  # fmt: skip
    assert r.config_get("lua-time-limit") == {"lua-time-limit": "5000"}
    assert "hash-max-ziplist-entries" in r.config_get("hash-max-zip*")
    assert r.config_get("user") == {}


@pytest.mark.since("7.0")
def test_get_is_a_map_in_resp3(r3: redis.Redis) -> None:
    assert r3.execute_command("CONFIG GET", "appendfsync") == {"appendfsync": "everysec"}


@pytest.mark.since("7.0")
def test_set_changes_all_or_nothing(restored: redis.Redis) -> None:
    r = restored
    assert r.execute_command("CONFIG SET", "maxmemory", "1gb", "timeout", "7")
    assert (r.config_get("maxmemory")["maxmemory"], r.config_get("timeout")["timeout"]) == (str(1 << 30), "7")
    error_of(r, "CONFIG SET", "timeout", "8", "maxmemory", "lots")
    assert r.config_get("timeout")["timeout"] == "7"


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        (["maxmemory", "x"], "argument must be a memory value"),
        (["maxmemory", "-1"], "argument must be a memory value"),
        (["maxmemory", "5tb"], "argument must be a memory value"),
        (["slowlog-log-slower-than", "-2"], "argument must be between -1 and 9223372036854775807 inclusive"),
        (["proto-max-bulk-len", "10"], "argument must be between 1048576 and 9223372036854775807 inclusive"),
        (["repl-backlog-size", "0"], "argument must be between 1 and 9223372036854775807 inclusive"),
        (["hz", "x"], "argument couldn't be parsed into an integer"),
        (["hz", ""], "argument couldn't be parsed into an integer"),
        (["hz", "9223372036854775808"], "argument couldn't be parsed into an integer"),
        (["hz", "012"], "argument couldn't be parsed into an integer"),
        (["hz", "1.5"], "argument couldn't be parsed into an integer"),
        (["appendonly", "maybe"], "argument must be 'yes' or 'no'"),
        (["loglevel", "x"], "argument(s) must be one of the following: debug, verbose, notice, warning"),
        (["save", "1"], "Invalid save parameters"),
        (["save", "1 -1"], "Invalid save parameters"),
        (["client-output-buffer-limit", "normal 1 2"], "Wrong number of arguments in buffer limit configuration."),
        (["databases", "3"], "can't set immutable config"),
        (["dir", "/"], "can't set protected config"),
        (["hz", "10", "hz", "11"], "duplicate parameter"),
        (["hz", "-1"], "argument must be between 0 and 2147483647 inclusive"),
        (["timeout", "-1"], "argument must be between 0 and 2147483647 inclusive"),
        (["appendfsync", "x"], "argument(s) must be one of the following: everysec, always, no"),
    ],
)
@pytest.mark.since("7.0")
def test_what_a_directive_does_not_take_is_refused_in_redis_words(r: redis.Redis, pairs: list[str], text: str) -> None:
    before = r.config_get(pairs[0])
    assert (
        error_of(r, "CONFIG SET", *pairs) == f"CONFIG SET failed (possibly related to argument '{pairs[0]}') - {text}"
    )
    assert r.config_get(pairs[0]) == before


@pytest.mark.since("7.0")
def test_limits_without_a_class_change_nothing_and_a_backlog_has_a_least_size(r: redis.Redis) -> None:
    before = r.config_get("*l*-b*l*-*")
    assert r.config_set("client-output-buffer-limit", "")
    assert r.config_get("*l*-b*l*-*") == before
    assert r.config_set("repl-backlog-size", "100")
    assert r.config_get("repl-backlog-size") == {"repl-backlog-size": "16384"}
    assert "must be between 1 and 9223372036854775807" in error_of(r, "CONFIG SET", "repl-backlog-size", "0")
    assert r.config_set("repl-backlog-size", before["repl-backlog-size"])


def test_hz_is_brought_into_its_range(r: redis.Redis) -> None:
    for asked, kept in (("0", "1"), ("1000", "500"), ("10", "10")):
        assert r.config_set("hz", asked)
        assert r.config_get("hz")["hz"] == kept


@pytest.mark.since("7.0")
@pytest.mark.parametrize(
    "name",
    [
        "crash-memcheck-enabled", "hll-sparse-max-bytes", "key-load-delay",
        "loading-process-events-interval-bytes", "oom-score-adj", "propagation-error-behavior", "rdb-del-sync-files",
        "rdb-key-save-delay", "repl-diskless-sync-max-replicas", "slave-ignore-maxmemory",
        "replica-ignore-disk-write-errors",
        "replica-lazy-flush", "shutdown-on-sigint", "shutdown-on-sigterm", "shutdown-timeout", "watchdog-period",
    ],
)  # fmt: skip
def test_what_needs_no_tuning_here_is_read_and_set_as_in_redis(r: redis.Redis, name: str) -> None:
    read_and_set(r, name)


@pytest.mark.since("7.2")
def test_what_came_with_redis_7_2_is_read_and_set_as_there(r: redis.Redis) -> None:
    read_and_set(r, "close-on-replica-write")


def read_and_set(r: redis.Redis, name: str) -> None:
    before = r.config_get(name)[name]
    assert r.config_set(name, before)
    assert r.config_get(name) == {name: before}
    assert error_of(r, "CONFIG SET", name, "no such value").startswith("CONFIG SET failed")


@pytest.mark.since("7.0")
def test_a_pattern_leaves_out_what_is_for_tests(r: redis.Redis) -> None:
    hidden = {"key-load-delay", "loading-process-events-interval-bytes", "rdb-key-save-delay", "watchdog-period"}
    assert not hidden & r.config_get("*").keys()
    assert r.config_get(*hidden).keys() == hidden


@pytest.mark.since("7.0")
def test_the_values_of_oom_score_adj_are_read_as_in_redis(r: redis.Redis) -> None:
    name = "oom-score-adj-values"
    assert r.config_get(name) == {name: "0 200 800"}
    assert r.config_set(name, "0 200 800")
    failed = f"CONFIG SET failed (possibly related to argument '{name}') - "
    assert error_of(r, "CONFIG SET", name, "1 2") == failed + "wrong number of arguments"
    for wrong in ("1 2 x", "1 2 2001", "-2001 2 3"):
        assert error_of(r, "CONFIG SET", name, wrong).startswith(failed + "Invalid oom-score-adj-values")


@pytest.mark.since("7.0")
@pytest.mark.parametrize(
    "name",
    ["cluster-enabled", "disable-thp", "io-threads", "io-threads-do-reads", "set-proc-title", "enable-module-command"],
)
def test_what_needs_no_tuning_here_and_is_fixed_at_the_start_is_read_as_in_redis(r: redis.Redis, name: str) -> None:
    assert r.config_get(name).keys() == {name}
    assert "can't set immutable config" in error_of(r, "CONFIG SET", name, "no")


def test_the_options_that_redis_gives_its_servers_in_tests_are_accepted(tmp_path: Path) -> None:
    given = {"enable-module-command": "yes", "propagation-error-behavior": "panic-on-replicas", "io-threads": "2"}
    options = {name.replace("-", "_"): value for name, value in given.items()}
    with Server(dir=tmp_path, **options) as server, redis.Redis.from_url(server.url) as client:
        assert client.config_get(*given) == given


@pytest.mark.since("7.0")
def test_what_is_not_a_directive_is_refused(r: redis.Redis) -> None:
    for name in ("no-such-thing", "user"):
        text = f"Unknown option or number of arguments for CONFIG SET - '{name}'"
        assert error_of(r, "CONFIG SET", "hz", "10", name, "x") == text
    assert error_of(r, "CONFIG SET", "hz", "10", "timeout") == "syntax error"
    assert error_of(r, "CONFIG REWRITE") == "The server is running without a config file"
    assert error_of(r, "CONFIG NOPE") == "unknown subcommand 'NOPE'. Try CONFIG HELP."


def test_resetstat_sets_counters_to_zero(r: redis.Redis) -> None:
    error_of(r, "NO-SUCH-COMMAND")
    assert r.info("stats")["total_error_replies"] > 0
    r.config_resetstat()
    assert r.info("stats")["total_error_replies"] == 0
    assert r.info("stats")["total_connections_received"] == 0


# -- the values, without a server -------------------------------------------------------------------------------


def change(config: Config, **values: str) -> None:
    pairs = [(find_directive(name.replace("_", "-")), value) for name, value in values.items()]
    config.change([(directive, value) for directive, value in pairs if directive is not None])


def test_a_listener_that_refuses_undoes_the_whole_change() -> None:
    config = Config()
    told: list[int] = []

    def refuse(value: int) -> None:
        if value == 9:
            raise ValueError("not nine")

    config.on_change("hz", told.append)
    config.on_change("timeout", refuse)
    with pytest.raises(ConfigError, match="not nine"):
        change(config, hz="50", timeout="9")
    assert (config.hz, config.timeout) == (10, 0)
    assert told == [50, 10]


def test_dir_must_be_a_folder(tmp_path: Path) -> None:
    config = Config()
    change(config, dir=str(tmp_path))
    with pytest.raises(ConfigError, match="No such file or directory"):
        change(config, dir=str(tmp_path / "missing"))
    assert config.show("dir") == str(tmp_path)


@pytest.mark.parametrize("name", ["dbfilename", "appendfilename", "appenddirname"])
def test_a_file_name_cannot_leave_the_folder(name: str) -> None:
    what = "dirname" if name == "appenddirname" else "filename"
    for path in ("a/b", "/a", "a\\b", "..", ".", "a\0"):
        with pytest.raises(ConfigError, match=f"{name} can't be a path, just a {what}"):
            change(Config(), **{name: path})
    with pytest.raises(ConfigError, match=f"command line: directive '{name}' \\(''\\): {name} can't be empty"):
        build(arguments=[(name, [""])])
    assert build(f"{name} 'a b'").show(name) == "a b"


def test_an_error_in_a_file_tells_the_line() -> None:
    with pytest.raises(ConfigError, match=r"line 2: directive 'hz' \('fast'\): argument couldn't be parsed"):
        build("port 7000\nhz fast\n")
    with pytest.raises(ConfigError, match="line 1: unknown directive 'prot'"):
        build("prot 7000\n")


FILE = """\
# what this server is for
port 7000

maxmemory 100mb
# often enough
save 60 1
save 10 1000
hash-max-ziplist-entries 64
requirepass "a b"
"""


def test_a_rewrite_without_changes_keeps_every_line_that_still_holds() -> None:
    assert rewritten(FILE, build(FILE), []) == FILE.replace("save 60 1\nsave 10 1000\n", "save 60 1 10 1000\n")


def test_a_rewrite_changes_lines_in_place_and_adds_the_rest_at_the_end() -> None:
    config = build(FILE)
    change(config, maxmemory="1gb", save="", requirepass='quo"te', hash_max_listpack_entries="32", hz="50", timeout="0")
    text = rewritten(FILE, config, ["alice on nopass"])
    assert text == (
        "# what this server is for\nport 7000\n\nmaxmemory 1073741824\n# often enough\n"
        'save ""\nhash-max-listpack-entries 32\nrequirepass "quo\\"te"\n'
        "# Generated by CONFIG REWRITE\nhz 50\nuser alice on nopass\n"
    )
    again = build(text)
    assert (again.save, again.requirepass, again.hz) == ([], 'quo"te', 50)
    assert rewritten(text, again, ["alice on nopass"]) == text


# -- CONFIG REWRITE on a server with a file ---------------------------------------------------------------------


def test_rewrite_replaces_the_file_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "penstock.conf"
    file.write_text("# mine\nhz 20\n")
    file.chmod(0o640)
    with Server(hz=20) as server, redis.Redis.from_url(server.url, protocol=2) as client:
        server.call(lambda app: setattr(app.config, "file", str(file)))
        client.config_set("hz", 30)
        client.execute_command("ACL SETUSER", "bob", "on", ">secret", "~b:*", "+get")
        client.config_rewrite()
    lines = file.read_text().splitlines()
    assert lines[:2] == ["# mine", "hz 30"]
    assert next(line for line in lines if line.startswith("user ")).startswith("user bob on ")
    assert not [line for line in lines if line.startswith("user default")]
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [file]
    assert build(file.read_text()).hz == 30


_SPACES = b" \t\n\r\v\f\0"
odd = st.one_of(st.binary(max_size=8), st.text("\"'\\#\x1c\x85\u2028\xa0é {}", max_size=8).map(str.encode))
word = odd.map(lambda raw: bytes(byte for byte in raw if byte not in _SPACES))


def may_end_a_rule(raw: bytes) -> bool:
    """What ACL SETUSER takes at the end of a rule of a selector."""
    return not raw.endswith(b")")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd, odd, word, word.filter(may_end_a_rule), word)
@example(b"\xff\xfe", b"\xff", b"\xff", b"", b"")
@example(b"\x1c", b"\xc2\xa0", "\u2028\xa0\x1c\x85".encode(), b"\xc2\xa0", b"\x1c")
@example(b'"', b"'", b'"#', b'"', b"'\\")
def test_a_start_reads_back_what_rewrite_wrote_whatever_its_bytes(
    tmp_path: Path, required: bytes, password: bytes, name: bytes, pattern: bytes, channel: bytes
) -> None:
    file = tmp_path / "penstock.conf"
    file.write_bytes("# für alle\nhz 20\n".encode())
    engine = Engine(serve.configure([str(file)], {}))
    session = Session(engine)
    for argv in [
        [b"CONFIG", b"SET", b"requirepass", required],
        [b"ACL", b"SETUSER", b"u" + name, b"reset", b"on", b">" + password, b"~" + pattern, b"&" + channel, b"+get"],
        [b"ACL", b"SETUSER", b"v" + name, b"(~" + pattern + b" +set)", b"(+get ~x" + pattern + b")"],
        [b"CONFIG", b"REWRITE"],
    ]:
        assert engine.execute(session, argv) is OK
    again = Engine(serve.configure([str(file)], {}))
    assert again.config.requirepass == engine.config.requirepass
    assert again.acl.describe() == engine.acl.describe()
    assert file.read_bytes().startswith("# für alle\nhz 20\n".encode())
    assert list(tmp_path.iterdir()) == [file]


def test_a_rewrite_that_fails_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "penstock.conf"
    file.write_text("hz 20\n")

    def broken(*_: object) -> str:
        raise RuntimeError

    monkeypatch.setattr(config_file, "rewritten", broken)
    with pytest.raises(RuntimeError):
        config_file.rewrite(file, Config(), [])
    assert list(tmp_path.iterdir()) == [file] and file.read_text() == "hz 20\n"


def test_rewrite_says_what_keeps_it_from_writing(tmp_path: Path) -> None:
    with Server() as server, redis.Redis.from_url(server.url, protocol=2) as client:
        server.call(lambda app: setattr(app.config, "file", str(tmp_path / "gone" / "penstock.conf")))
        assert error_of(client, "CONFIG REWRITE") == "Rewriting config file: No such file or directory"


def test_protected_directives_open_to_local_clients_on_request(tmp_path: Path) -> None:
    directives = {"enable-protected-configs": "local"}
    with Server(**directives) as server, redis.Redis.from_url(server.url, protocol=2) as client:
        assert client.config_set("dir", str(tmp_path))
        assert client.config_get("dir")["dir"] == str(tmp_path)
