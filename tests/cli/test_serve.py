"""`penstock serve` as a user starts and stops it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from tests.support.forked_program import ForkedProgram
from tests.support.waiting import wait_until

from penstock import Server
from penstock.cli.serve import configure
from penstock.engine.config import ConfigError
from penstock.testing.redis import free_port

SERVE = [sys.executable, "-m", "penstock", "serve"]


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([*SERVE, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A start that ends with an error."""
    with ForkedProgram([*SERVE, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        output, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


@contextlib.contextmanager
def connected(port: int, process: subprocess.Popen[str]) -> Iterator[redis.Redis]:
    """A client of the process, as soon as it answers."""

    def answers() -> bool:
        assert process.poll() is None, process.communicate()
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            return bool(client.ping())
        return False

    with redis.Redis(port=port, protocol=2, retry=None) as client:  # its own attempts are ever further apart
        wait_until(answers)
        yield client


def test_directives_come_from_the_file_and_the_command_line_wins(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "penstock.conf").write_text(
        f"# a comment\nport 1\n\nmaxclients 77\nsave 60 1000\nsave 300 10\n{'port'} {port}\n"
    )
    process = start("penstock.conf", "--maxclients", "99", "--save", "", "--databases", "3", cwd=tmp_path)
    try:
        with connected(port, process) as client:
            assert client.config_get("maxclients") == {"maxclients": "99"}
            assert client.config_get("databases") == {"databases": "3"}
            assert client.config_get("save") == {"save": ""}
    finally:
        process.terminate()
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Penstock" in output and "Ready to accept connections" in output and "Bye" in output
    assert f"127.0.0.1:{port}" in output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--prt", "7000"], "unknown directive 'prt'; did you mean port?"),
        (["--qqqqq", "7000"], "unknown directive 'qqqqq'\n"),
        (["--port=many"], "directive 'port' ('many')"),
        (["--shard", "a"], "shard needs etcd, which decides which server of a shard leads. Add --etcd URLS"),
        (["--node", "a"], "node needs etcd"),
        (["--logfile", "none/x.log"], "penstock serve: logfile none/x.log cannot be opened: No such file or directory"),
        (["--port", "many"], "directive 'port' ('many')"),
        (["--port", "70000"], "must be between 0 and 65535"),
        (["--appendfsync", "sometimes"], "must be one of the following: everysec, always, no"),
        (["--maxmemory", "lots"], "must be a memory value"),
        (["nowhere.conf"], "cannot read the configuration file 'nowhere.conf'"),
    ],
)
def test_a_bad_directive_stops_the_start_and_is_named(words: list[str], complaint: str, tmp_path: Path) -> None:
    process = ended(*words, cwd=tmp_path)
    assert process.returncode == 1
    assert complaint in process.stderr
    assert "Traceback" not in process.stderr


def test_the_command_line_takes_a_whole_line_in_a_word() -> None:
    config = configure(["--hz 20", "--user tess on '>a b=c'", "--dir=a b", "--save 60 1", "300", "10"], {})
    assert (config.hz, config.user, config.save) == (20, [["tess", "on", ">a b=c"]], [(60, 1), (300, 10)])
    assert config.show("dir").endswith("/a b")


def test_a_file_includes_others_where_it_names_them(tmp_path: Path) -> None:
    (tmp_path / "1.conf").write_text("hz 11\nmaxclients 11")
    (tmp_path / "2.conf").write_text(f"hz 22\nsave 60 1\ninclude {tmp_path}/none*.conf")
    main = tmp_path / "main.conf"
    main.write_text(f"hz 1\nInclude '{tmp_path}/[12].conf'\nmaxclients 7")
    config = configure([str(main)], {})
    assert (config.hz, config.maxclients, config.save) == (22, 7, [(60, 1)])
    config = configure([str(main), "--hz", "3", "--include", f"{tmp_path}/1.conf", "--save", ""], {})
    assert (config.hz, config.maxclients, config.save) == (11, 11, [])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("include other.conf\n", "other.conf: line 2: directive 'hz' ('x'): argument couldn't be parsed"),
        ("include none.conf", "main.conf: line 1: cannot read the configuration file 'none.conf': No such file"),
        ("include a b", "main.conf: line 1: include takes one file, or a pattern of files"),
        ("\ninclude main.conf", "main.conf: line 2: the file 'main.conf' includes itself"),
        ("include *.conf", "includes itself"),
        ("rename-command FLUSHALL ''", "line 1: directive 'rename-command' is not supported: ACLs decide"),
    ],
)
def test_what_is_wrong_with_an_included_file_is_named(
    text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("main.conf").write_text(text)
    Path("other.conf").write_text("port 0\nhz x\n" if "*" not in text else "")
    with pytest.raises(ConfigError) as raised:
        configure(["main.conf"], {})
    assert complaint in str(raised.value)
    assert str(raised.value).count("line") == 1, "the one place that is wrong"


def test_a_server_starts_without_a_pidfile_that_it_cannot_write(tmp_path: Path) -> None:
    port = free_port()
    process = start("--port", str(port), "--pidfile", "none/server.pid", "--save", "", cwd=tmp_path)
    try:
        with connected(port, process) as client:
            assert client.ping()
    finally:
        process.terminate()
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "cannot write the pidfile none/server.pid: No such file or directory" in output


def test_a_bad_line_of_the_file_is_named_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "bad.conf").write_text("port 7000\n# fine\nappendonly maybe\n")
    process = ended("bad.conf", cwd=tmp_path)
    assert process.returncode == 1
    assert "bad.conf: line 3: directive 'appendonly' ('maybe'): argument must be 'yes' or 'no'" in process.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--aclfile", "none.acl"], "Error loading ACLs, opening file"),
        (["--aclfile", "bad.acl"],
            "bad.acl:1: Error in applying operation '+bogus': Unknown command or category name in ACL."),
        (["--user", "tess", "on", "--user", "tess", "off"], "user tess: Duplicate user found."),
        (["--tls-port", "7001"], "tls-port needs tls-cert-file and tls-key-file"),
        (["--unixsocket", "none/x.sock"], "unixsocket none/x.sock cannot be used: No such file or directory"),
        (["--unixsocket", "data/bad.acl"], "unixsocket data/bad.acl cannot be used: a file of another kind has this"),
        (["--dir", "data/bad.acl"], "data/bad.acl cannot be written: it is no folder. Name a folder with --dir that"),
        (["--dir", "/proc/none"], "dir /proc/none cannot be written: No such file or directory. Name a folder"),
        (["--dir", "/proc", "--appendonly", "yes"], "dir /proc cannot be written: "),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_one_line(words: list[str], complaint: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "bad.acl").write_text("user tess on +bogus\n")
    process = ended("--port", str(free_port()), "--dir", "data", *words, cwd=tmp_path)
    assert process.returncode == 1
    assert [complaint in line for line in process.stdout.splitlines()] == [True], process.stdout
    assert process.stderr == ""
    assert (tmp_path / "data" / "bad.acl").read_text() == "user tess on +bogus\n"


def test_secrets_come_from_the_environment_or_a_file_it_names(tmp_path: Path) -> None:
    (tmp_path / "c.conf").write_text("requirepass from-conf\n")
    (tmp_path / "password").write_text("from-file\n")
    given = {
        "PENSTOCK_REQUIREPASS": "from-environment",
        "PENSTOCK_TLS_KEY_FILE_PASS_FILE": str(tmp_path / "password"),
        "OTHER": "x",
    }
    config = configure([str(tmp_path / "c.conf")], given)
    assert (config.requirepass, config.tls_key_file_pass) == ("from-environment", "from-file")
    assert given == {"OTHER": "x"}, "children need not know them"
    assert configure(["--requirepass", "from-line"], {"PENSTOCK_REQUIREPASS": "no"}).requirepass == "from-line"
    assert configure([str(tmp_path / "c.conf")], {}).requirepass == "from-conf"
    with pytest.raises(ConfigError, match="cannot read PENSTOCK_REQUIREPASS_FILE"):
        configure([], {"PENSTOCK_REQUIREPASS_FILE": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="not both"):
        configure([], {"PENSTOCK_REQUIREPASS_FILE": str(tmp_path / "password"), "PENSTOCK_REQUIREPASS": "x"})


def test_secrets_on_the_command_line_are_blanked_for_ps(tmp_path: Path) -> None:
    port = free_port()
    words = ["--port", str(port), "--requirepass", "sesame", "--user", "tess", "on", ">open", "+@all", "--save", ""]
    process = start(*words, cwd=tmp_path)
    try:
        with redis.Redis(port=port, password="sesame", retry=Retry(ConstantBackoff(0.05), 400)) as client:
            assert client.acl_whoami() == "default"
        with redis.Redis(port=port, username="tess", password="open") as client:
            assert client.ping()
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert shown[shown.index(b"--requirepass") + 1] == b"******"
    assert shown[shown.index(b"--user") + 1 :][:4] == [b"tess", b"on", b"*****", b"+@all"]
    assert shown[-3:] == [b"--save", b"", b""], "the rest is as it was"


def test_secrets_in_the_environment_are_blanked_for_proc(tmp_path: Path) -> None:
    port = free_port()
    secrets = {"PENSTOCK_REQUIREPASS": "sesame", "PENSTOCK_MASTERAUTH": "sesame too"}
    with subprocess.Popen(
        [*SERVE, "--port", str(port), "--save", ""], cwd=tmp_path, stdout=subprocess.PIPE,
        env={**os.environ, "FIRST": "1", **secrets, "LAST": "sesame is no secret here"},
    ) as process:  # fmt: skip
        try:
            with redis.Redis(port=port, password="sesame", retry=Retry(ConstantBackoff(0.05), 400)) as client:
                assert client.config_get("masterauth") == {"masterauth": "sesame too"}
            shown = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        finally:
            process.terminate()
    assert b"PENSTOCK_REQUIREPASS=******" in shown
    assert b"PENSTOCK_MASTERAUTH=**********" in shown
    assert b"FIRST=1" in shown and b"LAST=sesame is no secret here" in shown, "the rest is as it was"


def test_an_agent_and_its_server_blank_secrets_of_their_environment(tmp_path: Path) -> None:
    port = free_port()
    with subprocess.Popen(
        [*SERVE, "--port", str(port), "--bind", "127.0.0.1", "--etcd", "http://127.0.0.1:1", "--shard", "s",
         "--node", "n", "--appendonly", "yes"],
        cwd=tmp_path, stdout=subprocess.PIPE,
        env={**os.environ, "PENSTOCK_REQUIREPASS": "sesame", "PENSTOCK_ETCD_PASSWORD": "sesame too"},
    ) as agent:  # fmt: skip
        try:
            with redis.Redis(port=port, password="sesame", retry=Retry(ConstantBackoff(0.05), 400)) as client:
                server = client.info("server")["process_id"]
            for pid in (agent.pid, server):
                shown = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                assert b"PENSTOCK_REQUIREPASS=******" in shown
                assert b"PENSTOCK_ETCD_PASSWORD=**********" in shown
            assert server != agent.pid
        finally:
            agent.terminate()


def test_a_password_in_a_url_is_blanked_for_ps(ours: Server, tmp_path: Path) -> None:
    """`penstock tail` of a stream to which nothing is written waits, with its command line to be seen."""
    url = f"redis://default:sesame@127.0.0.1:{ours.port}/0"
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", "tail", "quiet", "--url", url],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    blanked = url.replace("sesame", "******").encode()
    try:
        wait_until(lambda: blanked in Path(f"/proc/{process.pid}/cmdline").read_bytes() or process.poll() is not None)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_port_in_use_is_an_error_without_a_trace(tmp_path: Path, ours) -> None:  # type: ignore[no-untyped-def]
    process = subprocess.run(
        [*SERVE, "--port", str(ours.port), "--bind", "127.0.0.1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 1
    assert f"cannot start: cannot listen on 127.0.0.1:{ours.port}: Address already in use. " in process.stdout
    assert "Another program listens there; end it, or choose another port" in process.stdout
    assert "Traceback" not in process.stdout + process.stderr


def test_replies_under_way_are_finished_on_sigterm(tmp_path: Path) -> None:
    port = free_port()
    process = start("--port", str(port), "--appendonly", "yes", "--appendfsync", "no", cwd=tmp_path)
    with connected(port, process) as client:
        pipe = client.pipeline(transaction=False)
        for number in range(2000):
            pipe.set(f"key:{number}", "x" * 100)
        assert len(pipe.execute()) == 2000
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    again = start("--port", str(port), "--appendonly", "yes", cwd=tmp_path)
    try:
        with connected(port, again) as client:
            assert client.dbsize() == 2000
    finally:
        again.terminate()
        again.communicate(timeout=60)


def test_json_logs_are_one_object_a_line(tmp_path: Path) -> None:
    port = free_port()
    process = start("--port", str(port), "--log-format", "json", "--pidfile", "server.pid", cwd=tmp_path)
    with connected(port, process):
        pass
    assert int((tmp_path / "server.pid").read_text()) == process.pid
    process.terminate()
    output, _ = process.communicate(timeout=60)
    records = [json.loads(line) for line in output.splitlines()]
    assert any(record["message"].startswith("Ready") and record["level"] == "notice" for record in records)
    assert not (tmp_path / "server.pid").exists()


def test_help_shows_every_directive() -> None:
    from penstock.engine.directives import DIRECTIVES

    output = subprocess.run([*SERVE, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    for name in DIRECTIVES:
        assert f"--{name} <" in output


def test_a_module_is_named_on_the_command_line(tmp_path: Path) -> None:
    factor = Path(__file__).parent.parent.parent / "examples" / "factor.py"
    port = free_port()
    process = start("--port", str(port), "--module", str(factor), "--save", "", cwd=tmp_path)
    try:
        with connected(port, process) as client:
            client.set("n", 91)
            assert client.execute_command("FACTOR", "n") == [7, 13]
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_module_that_is_not_there_is_an_error_at_start(tmp_path: Path) -> None:
    process = start("--port", str(free_port()), "--module", "nothing.py", cwd=tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cannot load the module 'nothing.py': FileNotFoundError: there is no file" in output + errors
    assert "Traceback" not in output + errors


STUCK = '''
import time
from penstock.modules import ALWAYS, Access, Flag, command, key

@command("STUCK", arity=2, flags=Flag.WRITE, keys=key(1, Access.UPDATE), group="module")
def stuck(session, argv):
    """Never return."""
    def compute():
        while True:
            time.sleep(60)
    return session.aside(ALWAYS, compute)
'''


def test_a_process_ends_although_a_thread_never_does(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    port = free_port()
    process = start("--port", str(port), "--module", "stuck.py", "--save", "", cwd=tmp_path)
    with connected(port, process) as client, redis.Redis(port=port) as other, other.client() as blocked:
        assert blocked.connection is not None
        blocked.connection.send_command("STUCK", "k")
        while not client.info("locks")["worker_jobs_running"]:
            pass
        with pytest.raises(redis.ConnectionError):
            client.execute_command("SHUTDOWN", "NOW")
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "given up on [b'STUCK', b'k'], which is still in its thread" in output


def test_threads_share_a_heap_from_before_arrow_starts_its_own() -> None:
    code = (
        "import sys; from penstock.cli import serve\n"
        "serve.share_heap = lambda: sys.exit(f'arrow is imported: {\"pyarrow\" in sys.modules}')\n"
        "serve.run([])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stderr == "arrow is imported: False\n"
