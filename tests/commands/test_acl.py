"""Users and rules, on ours and on a real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import strategies as st
from tests.support.comparison import Argv, comparison_machine
from tests.support.raw_client import RawClient

from penstock import Server
from penstock.engine.access import permissions
from penstock.engine.config import ConfigError, build
from penstock.engine.dispatch import Engine
from penstock.engine.session import Session
from penstock.testing.redis import find_redis

pytestmark = pytest.mark.since("7.0")


@pytest.fixture
def admin(r: redis.Redis) -> Iterator[redis.Redis]:
    """A client of the default user; users the test makes are deleted after it."""
    yield r
    names = [name for name in r.acl_users() if name != "default"]
    if names:
        r.acl_deluser(*names)
    r.execute_command("ACL", "LOG", "RESET")


def setuser(admin: redis.Redis, rules: str, name: str = "tess") -> None:
    admin.execute_command("ACL", "SETUSER", name, *rules.split())


def log_in(admin: redis.Redis, name: str = "tess", password: str = "pw", protocol: int = 2) -> redis.Redis:
    """A client of that user that tries once: redis-py would send a wrong password again and again, for seconds."""
    options = admin.connection_pool.connection_kwargs
    return redis.Redis(
        host=options["host"], port=options["port"], username=name, password=password, protocol=protocol,
        driver_info=None, retry=None,
    )  # fmt: skip


def ask(client: redis.Redis, words: str) -> Any:
    """A reply as it came, without redis-py's idea of it."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*words.split())
        return connection.read_response(disable_decoding=True)
    finally:
        client.connection_pool.release(connection)


def getuser(admin: redis.Redis, name: str = "tess") -> dict[bytes, Any]:
    flat = ask(admin, f"ACL GETUSER {name}")
    return dict(zip(flat[::2], flat[1::2], strict=True))


@pytest.mark.parametrize(
    ("rules", "commands", "keys", "channels"),
    [
        ("", b"-@all", b"", b""),
        ("allcommands allkeys allchannels", b"+@all", b"~*", b"&*"),
        ("+@all -@all", b"-@all", b"", b""),
        ("+get +set -set", b"-@all +get", b"", b""),
        ("+@read -get", b"-@all +@read -get", b"", b""),
        ("+@all -set", b"+@all -set", b"", b""),
        ("+config|get", b"-@all +config|get", b"", b""),
        ("+select|0 +select|1", b"-@all +select|0 +select|1", b"", b""),
        ("+GET", b"-@all +get", b"", b""),
        ("~a* ~b* ~a*", b"-@all", b"~a* ~b*", b""),
        ("%R~a* %W~b* %RW~c* %R~d %W~d", b"-@all", b"%R~a* %W~b* ~c* ~d", b""),
        ("~a resetkeys ~b", b"-@all", b"~b", b""),
        ("&a &b* resetchannels &c", b"-@all", b"", b"&c"),
    ],
)
def test_rules_read_back(admin: redis.Redis, rules: str, commands: bytes, keys: bytes, channels: bytes) -> None:
    setuser(admin, rules)
    user = getuser(admin)
    assert (user[b"commands"], user[b"keys"], user[b"channels"]) == (commands, keys, channels)


def test_flags_and_passwords_read_back(admin: redis.Redis) -> None:
    setuser(admin, "on >pw >other")
    user = getuser(admin)
    assert user[b"flags"] == [b"on"]
    assert len(user[b"passwords"]) == 2
    setuser(admin, "<pw")
    assert user[b"passwords"][1:] == getuser(admin)[b"passwords"]
    setuser(admin, "nopass off")
    assert getuser(admin)[b"flags"] == [b"off", b"nopass"]
    assert getuser(admin)[b"passwords"] == []
    assert ask(admin, "ACL GETUSER nobody") is None


def test_a_line_of_acl_list_makes_the_same_user_again(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +@read -get ~a* %R~b &c (+set ~x*) (+@hash allkeys)")
    line = next(row for row in ask(admin, "ACL LIST") if row.startswith(b"user tess"))
    admin.execute_command("ACL", "SETUSER", "twin", *line.split()[2:])
    twin = next(row for row in ask(admin, "ACL LIST") if row.startswith(b"user twin"))
    assert twin.removeprefix(b"user twin") == line.removeprefix(b"user tess")
    assert b"(~x* resetchannels -@all +set)" in line


@pytest.mark.parametrize(
    ("rules", "error"),
    [
        ("+foo", "Error in ACL SETUSER modifier '+foo': Unknown command or category name in ACL"),
        ("-foo", "Unknown command or category name in ACL"),
        ("+@foo", "Unknown command or category name in ACL"),
        ("+config|foo", "Unknown command or category name in ACL"),
        ("-select|0", "Unknown command or category name in ACL"),
        ("+config|get|x", "Allowing first-arg of a subcommand is not supported"),
        ("allkeys ~a", "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid"),
        ("allchannels &a", "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid"),
        ("%Q~a", "Syntax error"),
        ("bogus", "Error in ACL SETUSER modifier 'bogus': Syntax error"),
        ("(bogus)", "Error in ACL SETUSER modifier '(bogus)': Syntax error"),
        ("(+get", "Unmatched parenthesis in acl selector starting at '(+get'."),
        ("<nope", "The password you are trying to remove from the user does not exist"),
        ("#abc", "The password hash must be exactly 64 characters"),
        ("!" + "a" * 64, "The password you are trying to remove from the user does not exist"),
    ],
)
def test_a_wrong_rule_changes_nothing(admin: redis.Redis, rules: str, error: str) -> None:
    setuser(admin, "on >pw +get ~a")
    before = getuser(admin)
    with pytest.raises(redis.ResponseError) as caught:
        setuser(admin, "+set " + rules)
    assert error in str(caught.value)
    assert getuser(admin) == before


def test_a_user_may_only_do_what_its_rules_say(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +get +set +mget +config|get +publish ~app:* &news:*")
    with log_in(admin) as user:
        assert user.set("app:1", "x") and user.get("app:1") == b"x"
        assert user.config_get("maxmemory")
        assert user.publish("news:a", "m") == 0
        for call, error in (
            (("DEL", "app:1"), "this user has no permissions to run the 'del' command"),
            (("CONFIG", "SET", "maxmemory", "0"), "this user has no permissions to run the 'config|set' command"),
            (("GET", "other"), "this user has no permissions to access one of the keys used as arguments"),
            (("MGET", "app:1", "other"), "this user has no permissions to access one of the keys used as arguments"),
            (("PUBLISH", "x", "m"), "this user has no permissions to access one of the channels used as arguments"),
        ):
            with pytest.raises(redis.exceptions.NoPermissionError, match=error.replace("|", r"\|")):
                user.execute_command(*call)


def test_reading_and_writing_are_granted_apart(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +@all %R~in:* %W~out:*")
    with log_in(admin) as user:
        assert user.get("in:1") is None
        assert user.set("out:1", "x")
        assert user.copy("in:1", "out:2") is False
        for call in (("SET", "in:1", "x"), ("GET", "out:1"), ("COPY", "out:1", "in:1"), ("GETSET", "out:1", "y")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                user.execute_command(*call)


def test_who_may_only_write_may_add_and_see_that_it_is_there(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +@all %W~list %R~read")
    admin.rpush("read", "x")
    with log_in(admin) as user:
        for call in ("RPUSH list a", "LINSERT list BEFORE a b", "LSET list 0 c", "LREM list 0 c", "LTRIM list 0 -1",
                     "LLEN list", "EXISTS list read", "TYPE list", "OBJECT ENCODING list",
                     "XADD list * a 1"):  # fmt: skip
            try:
                user.execute_command(*call.split())
            except redis.exceptions.NoPermissionError:
                pytest.fail(f"{call} is refused")
            except redis.ResponseError as error:
                assert "WRONGTYPE" in str(error) and call.startswith("XADD")
        for call in ("LPOP list", "LMOVE list list LEFT LEFT", "LRANGE list 0 -1", "LMOVE read list LEFT LEFT"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                user.execute_command(*call.split())


def test_one_selector_alone_must_allow_a_command(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +get ~a* (+set ~b*)")
    with log_in(admin) as user:
        assert user.get("a1") is None
        assert user.set("b1", "x")
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.get("b1")
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.set("a1", "x")


def test_a_first_argument_may_be_allowed_alone(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +select|1")
    with log_in(admin) as user:
        assert user.execute_command("SELECT", "1")
        with pytest.raises(redis.exceptions.NoPermissionError, match="'select'"):
            user.execute_command("SELECT", "2")


def test_a_pattern_may_be_subscribed_to_only_word_for_word(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +@pubsub &news:*")
    with log_in(admin) as user, user.pubsub() as listener:
        listener.psubscribe("news:*")
        assert listener.get_message(timeout=60)["type"] == "psubscribe"
    with log_in(admin) as user, user.pubsub() as listener:
        listener.psubscribe("news:a*")
        with pytest.raises(redis.exceptions.NoPermissionError, match="channels"):
            listener.get_message(timeout=60)


def test_a_change_concerns_connected_clients_at_once(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +@all ~*")
    with log_in(admin) as user:
        assert user.set("k", "v")
        setuser(admin, "-set")
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.set("k", "w")
        setuser(admin, "off resetpass +set")
        assert user.set("k", "w")  # it stays logged in
        with log_in(admin) as another, pytest.raises(redis.AuthenticationError):
            another.ping()


def test_a_deleted_users_connections_are_closed(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +@all ~*")
    with log_in(admin) as user:
        connection = user.connection_pool.get_connection()
        connection.send_command("PING")
        assert connection.read_response() == b"PONG"
        assert admin.execute_command("ACL", "DELUSER", "tess", "nobody") == 1
        with pytest.raises(redis.ConnectionError):
            connection.send_command("PING")
            connection.read_response()
    with pytest.raises(redis.ResponseError, match="The 'default' user cannot be removed"):
        admin.execute_command("ACL", "DELUSER", "default")


def test_a_listener_that_lost_its_channel_is_closed(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +@all &a &b")
    with log_in(admin) as user:
        connection = user.connection_pool.get_connection()
        connection.send_command("SUBSCRIBE", "a")
        connection.read_response()
        setuser(admin, "resetchannels &a")
        connection.send_command("PING")
        assert connection.read_response() == [b"pong", b""]
        setuser(admin, "resetchannels &b")
        with pytest.raises(redis.ConnectionError):
            connection.read_response()


def test_rules_are_asked_again_when_a_transaction_runs(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +@all ~*")
    with log_in(admin) as user:
        connection = user.connection_pool.get_connection()
        for words in ("MULTI", "SET a 1", "GET a"):
            connection.send_command(*words.split())
            connection.read_response()
        setuser(admin, "-set")
        connection.send_command("EXEC")
        first, second = connection.read_response()
        assert "no longer allowed for the following reason: no permission to execute the command" in str(first)
        assert second is None
        connection.disconnect()


def test_a_script_may_do_no_more_than_its_user(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +eval +get ~a*")
    with log_in(admin) as user:
        assert user.eval("return redis.call('GET', KEYS[1])", 1, "a1") is None
        with pytest.raises(redis.RedisError, match="can't run this command or subcommand"):
            user.eval("return redis.call('SET', KEYS[1], 'x')", 1, "a1")
        with pytest.raises(redis.RedisError, match="can't access at least one of the keys"):
            user.eval("return redis.call('GET', 'b')", 0)


SORT_REFUSED = "{} option of SORT denied due to insufficient ACL permissions."


def refusal_of(client: redis.Redis, line: str) -> str:
    try:
        client.execute_command(*line.split())
    except redis.ResponseError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ("~mine:*", False), ("~mine:* %R~*", True), ("%R~mine:* %W~*", False), ("allkeys", True),
        ("~mine:* ~**", False), ("(~mine:* +@all) (%R~* -@all +get)", False), ("(~mine:* +@all) (~* +@all)", True),
    ],
)  # fmt: skip
def test_sort_follows_patterns_only_for_users_who_may_read_every_key(
    admin: redis.Redis, rules: str, allowed: bool
) -> None:
    admin.mset({"secret:1": "x", "secret:2": "y"})
    admin.rpush("mine:l", 1, 2)
    setuser(admin, f"on >pw +@all {rules}")
    with log_in(admin) as tess:
        for option, line in (
            ("BY", "SORT mine:l BY secret:* ALPHA"), ("GET", "SORT_RO mine:l BY nosort GET secret:*"),
            ("GET", "SORT mine:l GET #"), ("GET", "SORT mine:l GET secret:*"),
            ("BY", "SORT mine:l BY secret:* ALPHA GET *"),
        ):  # fmt: skip
            assert refusal_of(tess, line) == ("" if allowed else SORT_REFUSED.format(option))
            script = refusal_of(tess, f"EVAL return(redis.call(unpack(ARGV))) 0 {line}")
            assert script.startswith("" if allowed else SORT_REFUSED.format(option))
            pipe = tess.pipeline()
            pipe.execute_command(*line.split())
            (reply,) = pipe.execute(raise_on_error=False)
            assert isinstance(reply, redis.ResponseError) is not allowed
        assert refusal_of(tess, "SORT mine:l BY secret") == ""
        assert refusal_of(tess, "SORT mine:l BOGUS BY secret:*") == "syntax error"
        if "%W" not in rules:
            stored = refusal_of(tess, "SORT mine:l BY nosort GET secret:* STORE mine:d")
            assert stored == ("" if allowed else SORT_REFUSED.format("GET"))
            assert admin.exists("mine:d") == allowed


def test_bitfield_that_only_reads_needs_no_more_than_reading(admin: redis.Redis) -> None:
    admin.set("r", "a")
    setuser(admin, "on >pw +@all %R~r")
    with log_in(admin) as tess:
        assert ask(tess, "BITFIELD r GET u4 0 OVERFLOW SAT GET u4 4") == [6, 1]
        assert ask(tess, "BITFIELD r") == []
        for line in (
            "BITFIELD r SET u4 0 1",
            "BITFIELD r GET u4 0 INCRBY u4 0 1",
            "BITFIELD r BOGUS",
            "BITFIELD r GET u4",
        ):
            assert refusal_of(tess, line) == "this user has no permissions to access one of the keys used as arguments"
    assert refusal_of(admin, "EVAL_RO return(redis.call('bitfield','r','get','u4','0')) 0").startswith("Write commands")
    assert ask(admin, "COMMAND GETKEYSANDFLAGS BITFIELD r GET u4 0") == [[b"r", [b"RO", b"access"]]]


def test_whoami_users_and_usernames(admin: redis.Redis) -> None:
    setuser(admin, "on >pw +acl|whoami")
    assert admin.acl_whoami() == "default"
    assert ask(admin, "ACL USERS") == [b"default", b"tess"]
    with log_in(admin) as user:
        assert user.acl_whoami() == "tess"
    with pytest.raises(redis.ResponseError, match="Usernames can't contain spaces or null characters"):
        admin.execute_command("ACL", "SETUSER", "a b", "on")


def test_only_white_space_of_ascii_is_refused_in_names_and_patterns(admin: redis.Redis) -> None:
    for letter in "\xa0\u2028\x1c\x1f\x85\u3000":
        name = f"a{letter}b"
        admin.execute_command(
            "ACL", "SETUSER", name, "on", ">pw" + letter, f"~{name}", f"&{name}", f"(~x{letter} +get)"
        )
        assert name in admin.acl_users()
        with log_in(admin, name, "pw" + letter) as user, pytest.raises(redis.exceptions.NoPermissionError):
            user.get("y")
        admin.acl_deluser(name)
    for letter in " \t\n\r\v\f\0":
        for words in ((f"a{letter}b", "on"), ("tess", f"~a{letter}b"), ("tess", f"&a{letter}b")):
            with pytest.raises(redis.ResponseError, match=r"spaces|Syntax error"):
                admin.execute_command("ACL", "SETUSER", *words)


def test_a_user_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    """And one with odd names and rules is read again as it was written."""
    file = tmp_path / "users.acl"
    file.touch()
    with Server(dir=tmp_path, aclfile=file) as server, redis.Redis.from_url(server.url) as client:
        for name, rule in (("", "on"), ("tess", "+get|a b"), ("tess", "(~a) +get)"), ("tess", "(+get|a) ~a)")):
            with pytest.raises(redis.ResponseError, match=r"can't be empty|Syntax error|cannot end with '\)'"):
                client.execute_command("ACL", "SETUSER", name, rule)
        for name in ("on", '"', "#a", "(", b"\xff", "é", "\xa0", "\u2028", "\x1c"):
            client.execute_command("ACL", "SETUSER", name, "on", '~a"b', "~)", "&'", "(~( +get|#)")
        written = client.acl_list()
        assert client.execute_command("ACL", "SAVE") and client.execute_command("ACL", "LOAD")
    with Server(dir=tmp_path, aclfile=file) as server, redis.Redis.from_url(server.url) as client:
        assert sorted(client.acl_list()) == sorted(written)


def test_dry_run_tells_what_would_be_refused(admin: redis.Redis) -> None:
    setuser(admin, "+get +mget +publish ~a*")
    for call, answer in (
        ("GET a1", b"OK"),
        ("SET a1 x", b"This user has no permissions to run the 'set' command"),
        ("MGET a1 z", b"This user has no permissions to access the 'z' key"),
        ("PUBLISH c m", b"This user has no permissions to access the 'c' channel"),
    ):
        assert admin.execute_command("ACL", "DRYRUN", "tess", *call.split()) == answer
    for words, error in (
        ("nobody GET a", "User 'nobody' not found"),
        ("tess NOPE", "Command 'NOPE' not found"),
        ("tess GET", "wrong number of arguments for 'get' command"),
    ):
        with pytest.raises(redis.ResponseError, match=error):
            admin.execute_command("ACL", "DRYRUN", *words.split())


def test_categories_are_listed(admin: redis.Redis) -> None:
    names = ask(admin, "ACL CAT")
    assert names[:4] == [b"keyspace", b"read", b"write", b"set"] and len(names) == 21
    assert {b"get", b"hget", b"ttl"} <= set(ask(admin, "ACL CAT read"))
    assert b"set" not in ask(admin, "ACL CAT READ")
    with pytest.raises(redis.ResponseError, match="Unknown category 'nope'"):
        admin.execute_command("ACL", "CAT", "nope")


def test_generated_passwords_are_hexadecimal_and_differ(admin: redis.Redis) -> None:
    one, other = (ask(admin, "ACL GENPASS") for _ in range(2))
    assert one != other and len(one) == 64
    assert bytes.fromhex(one.decode())
    assert len(ask(admin, "ACL GENPASS 5")) == 2
    for bad in ("0", "4097", "-1"):
        with pytest.raises(redis.ResponseError, match="a positive number up to 4096"):
            admin.execute_command("ACL", "GENPASS", bad)


def test_the_log_counts_what_was_refused(admin: redis.Redis) -> None:
    admin.execute_command("ACL", "LOG", "RESET")
    setuser(admin, "on >pw +get +publish ~a*")
    with log_in(admin) as user:
        for call in (("SET", "a", "1"), ("GET", "b"), ("GET", "b"), ("PUBLISH", "c", "m")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                user.execute_command(*call)
    with log_in(admin, password="wrong") as user, pytest.raises(redis.AuthenticationError):
        user.ping()
    rows = admin.acl_log()
    seen = [(row["reason"], row["object"], row["count"], row["username"]) for row in rows]
    assert seen[1:] == [("channel", "c", 1, "tess"), ("key", "b", 2, "tess"), ("command", "set", 1, "tess")]
    assert rows[0]["reason"] == "auth" and rows[0]["username"] == "tess"
    assert rows[1]["client-info"]["user"] == "tess" and rows[1]["context"] == "toplevel"
    assert len(admin.acl_log(2)) == 2
    assert admin.acl_log_reset()
    assert admin.acl_log() == []


def test_requirepass_is_the_default_users_password(admin: redis.Redis) -> None:
    admin.config_set("requirepass", "sesame")
    try:
        assert admin.ping()  # connected clients stay
        with log_in(admin, "default", "wrong") as user, pytest.raises(redis.AuthenticationError):
            user.ping()
        with log_in(admin, "default", "sesame") as user:
            assert user.ping()
            assert len(getuser(user, "default")[b"passwords"]) == 1
    finally:
        admin.config_set("requirepass", "")
    assert getuser(admin, "default")[b"flags"] == [b"on", b"nopass"]


# -- files and directives: only ours --------------------------------------------------------------------------


def test_users_survive_in_the_acl_file(tmp_path: Path) -> None:
    file = tmp_path / "users.acl"
    file.touch()
    with Server(aclfile=file) as server, redis.Redis.from_url(server.url) as client:
        setuser(client, "on >pw +get ~a*")
        before = ask(client, "ACL LIST")
        assert client.acl_save()
        client.acl_deluser("tess")
        setuser(client, "on", "newcomer")
        assert client.acl_load()
        assert ask(client, "ACL LIST") == before
    assert [path.name for path in tmp_path.iterdir()] == ["users.acl"]
    with Server(aclfile=file) as server, redis.Redis.from_url(server.url) as client:
        assert ask(client, "ACL LIST") == before


def test_a_bad_acl_file_changes_nothing_and_names_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "users.acl"
    file.touch()
    with Server(aclfile=file) as server, redis.Redis.from_url(server.url) as client:
        setuser(client, "on +get", "tess")
        before = ask(client, "ACL LIST")
        file.write_text("user tess on\n\nbogus\nuser b +nope\nuser tess off\nuser c (+get\nuser a\0b on\n")
        with pytest.raises(redis.ResponseError) as caught:
            client.acl_load()
        text = str(caught.value)
        assert f"{file}:3 should start with user keyword followed by the username." in text
        assert f"{file}:4: Error in applying operation '+nope': Unknown command or category name in ACL." in text
        assert "Duplicate user 'tess' found on line 5." in text
        assert f"{file}:6: Unmatched parenthesis" in text
        assert f"{file}:7: Usernames can't contain spaces or null characters" in text
        assert ask(client, "ACL LIST") == before
    with pytest.raises(ConfigError, match=r"users\.acl:3"):
        Server(aclfile=file).start()


def test_without_an_acl_file_saving_is_refused(r: redis.Redis) -> None:
    for sub in ("SAVE", "LOAD"):
        with pytest.raises(redis.ResponseError, match="not configured to use an ACL file"):
            r.execute_command("ACL", sub)


def test_users_come_from_directives_too() -> None:
    with (
        Server(user="tess on >pw +get ~a*") as server,
        redis.Redis.from_url(server.url) as client,
        log_in(client) as user,
    ):
        assert user.get("a") is None
    for lines, problem in (
        (["tess bogus"], r"user tess: .*Syntax error"),
        (["tess on", "tess off"], "user tess: Duplicate user found. A user can only be defined once in config files"),
        (["tess on", ""], "a user directive without a name"),
    ):
        with pytest.raises(ConfigError, match=problem):
            Server(user=lines).start()


def test_a_password_in_a_configuration_file_may_have_spaces() -> None:
    config = build('user tess on ">a b" >"two  words" "<a b" "~a*" "" (+get ~b*) +get\nuser default on ">c d" +@all\n')
    users = Engine(config=config).acl.users
    assert users["tess"].accepts(b"two  words") and not users["tess"].accepts(b"a b")
    assert users["default"].accepts(b"c d")
    described = users["tess"].describe().decode()
    assert described.endswith(" ~a* resetchannels -@all +get (~b* resetchannels -@all +get)")
    with pytest.raises(ConfigError, match=r"user tess: .*Syntax error"):
        Engine(config=build('user tess "on >a b"'))


def test_an_empty_rule_changes_nothing(admin: redis.Redis) -> None:
    setuser(admin, "on >pw ~* +get")
    before = getuser(admin)
    assert admin.execute_command("ACL", "SETUSER", "tess", "")
    assert getuser(admin) == before


def test_a_line_for_the_default_user_gives_all_that_it_may() -> None:
    with (
        Server(user="default on nopass ~* +@all", requirepass="x") as server,
        redis.Redis.from_url(server.url) as client,
    ):
        assert ask(client, "ACL LIST") == [b"user default on nopass sanitize-payload ~* resetchannels +@all"]
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.publish("c", "m")


def test_the_acl_file_is_inside_dir_and_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Error loading ACLs, opening file '.*/users\.acl': No such file"):
        Server(dir=tmp_path, aclfile="users.acl").start()
    (tmp_path / "users.acl").write_text("user default off\nuser tess on >pw +@all ~* &*\n")
    with Server(dir=tmp_path, aclfile="users.acl") as server:
        with redis.Redis.from_url(server.url, retry=None) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
        with redis.Redis.from_url(server.url, username="tess", password="pw") as client:
            setuser(client, "on", "newcomer")
            assert client.acl_save()
    assert "user newcomer on" in (tmp_path / "users.acl").read_text()


def test_loading_users_closes_connections_of_those_that_are_gone_or_changed(tmp_path: Path) -> None:
    file = tmp_path / "users.acl"
    lines = {name: f"user {name} on nopass ~* &* +@all\n" for name in ("gone", "changed", "same", "default", "self")}
    file.write_text("".join(lines.values()))
    with Server(aclfile=file) as server:
        clients = {name: RawClient(server.port) for name in lines}
        for name, client in clients.items():
            assert client.ask(f"AUTH {name} x") == b"OK"
        del lines["gone"]
        lines |= {name: f"user {name} on nopass ~a* &* +@all\n" for name in ("changed", "self", "default")}
        file.write_text("".join(lines.values()))
        assert clients["self"].ask("ACL LOAD") == b"OK", "it is told, and closed then"
        for name in ("gone", "changed", "self"):
            assert clients[name].is_closed(), name
        assert clients["same"].ask("ACL WHOAMI") == b"same"
        assert (
            clients["default"].ask("GET b")
            == "NOPERM this user has no permissions to access one of the keys used as arguments"
        )
        for client in clients.values():
            client.close()


def test_a_user_that_may_do_all_again_takes_the_fast_path() -> None:
    with Server() as server, redis.Redis.from_url(server.url) as client:
        setuser(client, "on >pw +@all ~* &* -get")
        with log_in(client) as user:
            user.ping()

            def plain() -> list[bool]:
                sessions = server.app.engine.sessions.values()
                return [session.plain for session in sessions if session.user.name == "tess"]

            assert server.call(lambda app: plain()) == [False]
            setuser(client, "allcommands")
            assert server.call(lambda app: plain()) == [True]


# -- random rules, compared -----------------------------------------------------------------------------------

NAMES = st.sampled_from([b"ann", b"bob"])
RULES = st.sampled_from(
    b"on off nopass resetpass >a >b <a ~a* ~b %R~a* %W~b %RW~c ~* allkeys resetkeys &c &d* allchannels resetchannels "
    b"+get -get +set -set +@read -@read +@write -@write +@all -@all +config|get -config|get +config -config "
    b"(+get,~a*) (+@all,%R~b) (-@all,+set,allkeys) clearselectors reset bogus +nope +@nope %X~a (".split()
).map(lambda rule: rule.replace(b",", b" "))
CALLS = st.sampled_from(
    [call.split() for call in (b"GET a1", b"GET b", b"SET a1 x", b"SET b x", b"SET b x GET", b"MGET a1 b",
        b"MSET a1 1 c 2",
     b"COPY a1 b", b"CONFIG GET x", b"CONFIG SET x y", b"PUBLISH c m", b"PUBLISH e m", b"PSUBSCRIBE d*", b"PING",
     b"AUTH x",
     b"SINTERSTORE c a1 b", b"EXISTS a1", b"TYPE b", b"DEL b", b"GETDEL a1", b"OBJECT ENCODING b", b"NOPE")]
)  # fmt: skip
COMMANDS = st.one_of(
    st.builds(lambda name, rules: [b"ACL", b"SETUSER", name, *rules], NAMES, st.lists(RULES, max_size=5)),
    st.builds(lambda name, call: [b"ACL", b"DRYRUN", name, *call], NAMES, CALLS),
    st.builds(lambda name: [b"ACL", b"GETUSER", name], NAMES),
    st.builds(lambda name: [b"ACL", b"DELUSER", name], NAMES),
    st.just([b"ACL", b"USERS"]),
)


def without_commands(argv: Argv, reply: Any) -> Any:
    """Which rules describe a set of commands best depends on all the commands a server has."""
    if argv[1] == b"GETUSER" and isinstance(reply, list):
        user = dict(zip(reply[::2], reply[1::2], strict=True))
        del user[b"commands"]
        user[b"selectors"] = [selector[2:] for selector in user[b"selectors"]]
        return user
    return reply


if find_redis().version >= (7, 0):
    TestRules = comparison_machine(COMMANDS, without_commands, examples=40, steps=30)


def test_the_rules_of_users_with_the_same_commands_are_derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    best_category, calls = permissions._best_category, []

    def counted(*arguments: Any) -> str | None:
        calls.append(arguments)
        return best_category(*arguments)

    monkeypatch.setattr(permissions, "_best_category", counted)
    session = Session(Engine())
    for number in range(50):
        rules = [b"~k:%d" % number, b"+@read", b"+set", b"+get|%d" % (number % 2), b"-mget"]
        session.engine.execute(session, [b"ACL", b"SETUSER", b"user%d" % number, *rules])
    listed = session.engine.execute(session, [b"ACL", b"LIST"])
    assert isinstance(listed, list) and len(listed) == 51
    assert 0 < len(calls) < 50
    assert session.engine.execute(session, [b"ACL", b"LIST"]) == listed
    assert len({line.partition(b"channels ")[2] for line in listed}) == 2
