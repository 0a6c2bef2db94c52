"""Every directive, declared once: its name, its type, its default, whether it may change at run time, its help.

The file, the command line, CONFIG GET/SET/REWRITE and the reference page in docs/ all come from the table below.
To add a directive: one line in the table; read it as `config.name_with_underscores`; if something must happen when it
changes, `config.on_change("name", function)`.

Invariant: a Config always holds values its directives' parsers accepted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.protocol.errors import PenstockError
from penstock.protocol.grammar import split_inline


class ConfigError(PenstockError):
    """A directive that does not exist or a value it does not take; says which, and where it was written."""


class ChangeRefused(ConfigError):
    """CONFIG SET of a value that a directive, or somebody who must act on it, does not take."""

    def __init__(self, directive: Directive, why: str) -> None:
        super().__init__(why)
        self.directive = directive


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of value: text words to a Python value and back."""

    name: str
    parse: Callable[[list[str]], Any]
    show: Callable[[Any], str]
    is_text: bool = False  # any text at all, which a file may have to quote

    def words(self, text: str) -> list[str]:
        """A whole value, as CONFIG SET or a program gives it, as the words `parse` takes."""
        return text.split() if self is WORDS else [text]


def _one(words: list[str]) -> str:
    if len(words) != 1:
        raise ValueError("wrong number of arguments")
    return words[0]


def _yes_no(words: list[str]) -> bool:
    word = _one(words).lower()
    if word not in ("yes", "no"):
        raise ValueError("argument must be 'yes' or 'no'")
    return word == "yes"


_INT_MAX = (1 << 31) - 1
_is_integer = re.compile(r"(0|-?[1-9]\d{0,18})\Z", re.ASCII).match
_UNITS = {"b": 1, "k": 1000, "kb": 1024, "m": 1000**2, "mb": 1024**2, "g": 1000**3, "gb": 1024**3}


def parse_memory(text: str) -> int:
    """Bytes, with Redis's units: 1k is 1000, 1kb is 1024.

    >>> parse_memory("2mb")
    2097152
    """
    digits = text.rstrip("kKmMgGbB")
    unit = text[len(digits) :].lower()
    if not digits.isdigit() or (unit and unit not in _UNITS):
        raise ValueError("argument must be a memory value")
    return int(digits) * _UNITS.get(unit, 1)


def _within(number: int, low: int, high: int) -> int:
    if not low <= number <= high:
        raise ValueError(f"argument must be between {low} and {high} inclusive")
    return number


def memory(low: int, high: int) -> Kind:
    return Kind("memory", lambda words: _within(parse_memory(_one(words)), low, high), str)


def integer(low: int, high: int) -> Kind:
    def parse(words: list[str]) -> int:
        text = _one(words)
        if not _is_integer(text) or not -(1 << 63) <= int(text) < 1 << 63:
            raise ValueError("argument couldn't be parsed into an integer")
        return _within(int(text), low, high)

    return Kind("integer", parse, str)


def clamped(low: int, high: int) -> Kind:
    """An integer; one that is too small or too large becomes the nearest that is not."""
    any_integer = integer(0, _INT_MAX)
    return Kind("integer", lambda words: min(max(any_integer.parse(words), low), high), str)


def choice(*options: str) -> Kind:
    def parse(words: list[str]) -> str:
        word = _one(words).lower()
        if word not in options:
            raise ValueError("argument(s) must be one of the following: " + ", ".join(options))
        return word

    return Kind(" | ".join(options), parse, str)


YES_NO = Kind("yes | no", _yes_no, lambda value: "yes" if value else "no")
TEXT = Kind("text", _one, str, is_text=True)
WORDS = Kind("words", lambda words: words, " ".join)
FOLDER = Kind("folder", _one, os.path.abspath, is_text=True)
MEMORY = memory(0, (1 << 64) - 1)
LENGTH = memory(1 << 20, (1 << 63) - 1)  # of what a client sends: less than a megabyte would lock everybody out


def _save(words: list[str]) -> list[tuple[int, int]]:
    words = [word for text in words for word in text.split()]
    if not words:
        return []
    if len(words) % 2 or not all(word.isdigit() for word in words):
        raise ValueError("Invalid save parameters")
    rules = [(int(a), int(b)) for a, b in zip(words[::2], words[1::2], strict=True)]
    if any(seconds < 1 for seconds, _ in rules):
        raise ValueError("Invalid save parameters")
    return rules


SAVE = Kind("seconds changes ...", _save, lambda rules: " ".join(f"{a} {b}" for a, b in rules))

MODULE = Kind("module", lambda words: [_one(words)], " ".join)

BufferLimits = dict[str, tuple[int, int, int]]


def _buffer_limits(words: list[str]) -> BufferLimits:
    words = [word for text in words for word in text.split()]
    if not words or len(words) % 4:
        raise ValueError("Wrong number of arguments in buffer limit configuration.")
    limits: BufferLimits = {}
    for at in range(0, len(words), 4):
        name = {"slave": "replica"}.get(words[at].lower(), words[at].lower())
        if name not in ("normal", "replica", "pubsub"):
            raise ValueError("Invalid client class specified in buffer limit configuration.")
        try:
            limits[name] = (parse_memory(words[at + 1]), parse_memory(words[at + 2]), int(words[at + 3]))
        except ValueError:
            raise ValueError("Error in hard, soft or soft_seconds setting in buffer limit configuration.") from None
    return limits


BUFFER_LIMITS = Kind(
    "class hard soft seconds ...",
    _buffer_limits,
    lambda limits: " ".join(
        f"{'slave' if name == 'replica' else name} {hard} {soft} {seconds}"
        for name, (hard, soft, seconds) in limits.items()
    ),
)


@dataclass(frozen=True, slots=True)
class Directive:
    """One setting."""

    name: str
    kind: Kind
    default: Any
    help: str
    mutable: bool = True
    secret: bool = False  # not shown in logs
    repeated: bool = False  # several lines of a file add up instead of replacing each other; not for CONFIG GET
    protected: bool = False  # CONFIG SET takes it only if enable-protected-configs says so
    aliases: tuple[str, ...] = ()  # older names, which CONFIG and the file know too

    @property
    def default_text(self) -> str:
        """The default as it is written, not as it comes out here: a folder is not made absolute."""
        return (str(self.default) if self.kind.is_text else self.kind.show(self.default)) or '""'

    @property
    def attribute(self) -> str:
        return self.name.replace("-", "_")


def _table(*directives: Directive) -> dict[str, Directive]:
    return {directive.name: directive for directive in directives}


_PORT = integer(0, 65535)
_COUNT = integer(0, (1 << 63) - 1)
_IDLE = "Accepted, and without effect: "
D = Directive

DIRECTIVES: dict[str, Directive] = _table(
    # network
    D("port", _PORT, 6379, "TCP port for plain connections; 0 turns them off."),
    D("bind", WORDS, ["127.0.0.1", "-::1"], "Addresses to listen on; a leading - means: skip it if it is not there."),
    D("unixsocket", TEXT, "", "Path of a Unix socket to listen on; empty for none.", mutable=False),
    D("unixsocketperm", TEXT, "0", "Mode of the Unix socket in octal; 0 leaves it to the umask.", mutable=False),
    D("protected-mode", YES_NO, True, "Refuse clients from other machines while the default user has no password."),
    D("tcp-backlog", integer(1, 65535), 4096, "Connections the kernel may hold before they are accepted; it holds no more than its own net.core.somaxconn.", mutable=False),
    D("tcp-keepalive", integer(0, _INT_MAX), 300, "Seconds between keep-alive probes to silent clients; 0 for none."),
    D("timeout", integer(0, _INT_MAX), 0, "Close a client that was idle for this many seconds; 0 never."),
    D("maxclients", integer(1, 1 << 20), 10000, "Connections at once; one more gets an error and is closed. Lowered at start if the limit of open files is too low for them."),
    D("tls-port", _PORT, 0, "TCP port for TLS connections; 0 turns them off."),
    D("tls-cert-file", TEXT, "", "PEM file with the server's certificate chain, inside dir unless the path is absolute. Setting it, even to the same name, reads it again; so does SIGHUP."),
    D("tls-key-file", TEXT, "", "PEM file with the server's private key; likewise."),
    D("tls-key-file-pass", TEXT, "", "Pass phrase of the private key.", secret=True),
    D("tls-ca-cert-file", TEXT, "", "PEM file with the authorities that client certificates must come from; likewise."),
    D("tls-auth-clients", choice("yes", "no", "optional"), "yes", "Whether TLS clients must show a certificate."),
    # limits
    D("proto-max-bulk-len", LENGTH, 512 << 20, "Longest single argument, in bytes."),
    D("client-query-buffer-limit", LENGTH, 1 << 30, "Most bytes held of a command that is not whole yet."),
    D("client-output-buffer-limit", BUFFER_LIMITS, {"normal": (0, 0, 0), "replica": (256 << 20, 64 << 20, 60), "pubsub": (32 << 20, 8 << 20, 60)}, "Unsent replies after which a client is closed: hard, or soft for some seconds."),
    D("maxmemory", MEMORY, 0, "Memory after which commands that may need more are refused with OOM; 0 for no limit."),
    D("maxmemory-policy", choice("noeviction"), "noeviction", "What to do at maxmemory: refuse writes. Nothing is evicted behind a writer's back."),
    D("busy-reply-threshold", _COUNT, 5000, "Milliseconds after which a running script is called busy.", aliases=("lua-time-limit",)),
    # general
    D("databases", integer(1, 1024), 16, "Number of databases.", mutable=False),
    D("daemonize", choice("no"), "no", "Always no: a supervisor or a shell keeps the server in the background.", mutable=False),
    D("loglevel", choice("debug", "verbose", "notice", "warning"), "notice", "Least level of what is logged."),
    D("logfile", TEXT, "", "File to log to; empty logs to standard output.", mutable=False),
    D("log-format", choice("text", "json"), "text", "One line a record: for people, or one JSON object.", mutable=False),
    D("pidfile", TEXT, "", "File to write the process id to.", mutable=False),
    D("hz", clamped(1, 500), 10, "Times a second that expiry, idle clients and save rules are looked at."),
    D("always-show-logo", YES_NO, True, "Show the banner at start, also when the output is not a terminal.", mutable=False),
    # users
    D("requirepass", TEXT, "", "Password of the default user.", secret=True),
    D("aclfile", TEXT, "", "File with the users, inside dir unless the path is absolute. The server does not start without it; ACL SAVE writes it, ACL LOAD reads it.", mutable=False),
    D("user", WORDS, [], "A user and its rules, as ACL SETUSER takes them; one line each. A user starts without any permission, default too.", mutable=False, repeated=True),
    D("acllog-max-len", _COUNT, 128, "Refusals that ACL LOG keeps."),
    D("acl-pubsub-default", choice("allchannels", "resetchannels"), "resetchannels", "Channels a new user may use."),
    # threads
    D("worker-threads", integer(0, 64), 2, "Threads for the slow part of commands that touch much, and for compression, and as many again for commands of modules; 0 runs everything on the loop."),
    D("worker-threshold", integer(1, 1 << 62), 10_000, "Elements that a command must be about to touch to be run in a thread."),
    D("module", MODULE, [], "Python module with further commands to load: a dotted name or a .py file; one line each.", mutable=False, repeated=True, aliases=("loadmodule",)),
    # durability
    D("dir", FOLDER, ".", "Folder for the log and the snapshots.", protected=True),
    D("dbfilename", TEXT, "dump.pns", "File name of the snapshot, inside dir.", protected=True),
    D("save", SAVE, [(3600, 1), (300, 100), (60, 10000)], "Take a snapshot when so many seconds passed with so many changes."),
    D("stop-writes-on-bgsave-error", YES_NO, True, "Refuse writes while snapshots fail, so that somebody notices."),
    D("appendonly", YES_NO, False, "Log every change to the append-only file. CONFIG SET to yes is answered when a crash would find all that is written from then on."),
    D("appendfilename", TEXT, "appendonly.aof", "First part of the log's file names.", mutable=False),
    D("appenddirname", TEXT, "appendonlydir", "Folder for the log's files, inside dir.", mutable=False),
    D("appendfsync", choice("everysec", "always", "no"), "everysec", "When the log reaches the disk: before a reply, once a second, or when the system likes."),
    D("no-appendfsync-on-rewrite", YES_NO, False, "Do not sync the log while a child writes a snapshot or a new base."),
    D("auto-aof-rewrite-percentage", _COUNT, 100, "Rewrite the log when it grew by this much since the last time; 0 never."),
    D("auto-aof-rewrite-min-size", MEMORY, 64 << 20, "Never rewrite a log smaller than this by itself."),
    D("aof-load-truncated", YES_NO, True, "Cut a torn last record off and start; no refuses to start."),
    D("aof-timestamp-enabled", YES_NO, False, "Write the time into the log, for reading it."),
    # streams
    D("stream-compression", choice("none", "lz4", "zstd"), "lz4", "How nodes that are no longer hot are kept in memory and on disk."),
    D("stream-compression-backlog", MEMORY, 256 << 20, "Bytes of messages that may wait uncompressed, of all streams together; 0 compresses at once."),
    D("stream-compression-rest", integer(0, 1 << 40), 10_000, "Milliseconds that messages rest uncompressed, because what is new is read soon; up to twice as long."),
    D("stream-hot-nodes", integer(0, 1 << 20), 8, "Sealed nodes of a stream that stay ready to be sent, the newest ones."),
    D("stream-max-pending", integer(1, 1 << 40), 1000, "Messages a group may have unacknowledged before it gets no new ones."),
    D("stream-stage-timeout", integer(1000, 1 << 40), 3_600_000, "Milliseconds after which entries that were staged and not committed go."),
    # exactly once
    D("once-max-bytes", MEMORY, 256 << 20, "Bytes of replies kept for ONCE; at that size new commands under ONCE are refused with ONCEFULL."),
    D("once-idle-timeout", integer(1000, 1 << 40), 3_600_000, "Milliseconds after which a client of ONCE that sent nothing is forgotten."),
    # LAZY
    D("lazy-queue-enabled", integer(0, 1), 1, "1 runs what LAZY queued whenever the server is idle; 0 only when somebody needs it, or it is too old."),
    D("lazy-max-queued", _COUNT, 10_000, "Commands that LAZY may have queued; one more runs at once."),
    D("lazy-max-bytes", MEMORY, 64 << 20, "Bytes of commands that LAZY may have queued; what is beyond runs at once."),
    D("lazy-max-age", _COUNT, 10_000, "Milliseconds after which a queued command runs although the server is not idle; 0 never."),
    # scripts and introspection
    D("slowlog-log-slower-than", integer(-1, (1 << 63) - 1), 10000, "Microseconds from which a command is kept in the slow log; -1 keeps none."),
    D("slowlog-max-len", _COUNT, 128, "Commands the slow log keeps."),
    D("latency-monitor-threshold", _COUNT, 0, "Milliseconds from which LATENCY notes a command or a fork that kept everybody waiting; 0 notes nothing."),
    D("enable-protected-configs", choice("yes", "no", "local"), "no", "Who may CONFIG SET dir and dbfilename: all clients, none, clients on this machine.", mutable=False),
    D("enable-debug-command", choice("yes", "no", "local"), "local", "Who may use DEBUG: all clients, none, clients on this machine.", mutable=False),
    D("enable-module-command", choice("no"), "no", "Always no: modules are loaded at start, by the directive module.", mutable=False),
    # Redis's, for which there is nothing to tune here; they are here so that programs and test suites can set them
    D("activerehashing", YES_NO, True, _IDLE + "tables are resized as they grow."),
    D("active-expire-effort", integer(1, 10), 1, _IDLE + "expired keys are deleted as soon as there is time."),
    D("activedefrag", choice("no"), "no", "Always no: memory is not moved."),
    D("aof-rewrite-incremental-fsync", YES_NO, True, _IDLE + "files are synced once they are whole."),
    D("aof-use-rdb-preamble", choice("yes"), "yes", "Always yes: the base of the log is a snapshot."),
    D("crash-log-enabled", YES_NO, True, _IDLE + "Python writes its own report."),
    D("dynamic-hz", YES_NO, True, _IDLE + "hz is what it is."),
    D("jemalloc-bg-thread", YES_NO, True, _IDLE + "there is no jemalloc."),
    D("latency-tracking", choice("no"), "no", "Always no: LATENCY HISTOGRAM is empty."),
    D("lazyfree-lazy-eviction", YES_NO, False, _IDLE + "nothing is evicted."),
    D("lazyfree-lazy-expire", YES_NO, False, _IDLE + "large values are freed in small steps in any case."),
    D("lazyfree-lazy-server-del", YES_NO, False, _IDLE + "large values are freed in small steps in any case."),
    D("lazyfree-lazy-user-del", YES_NO, False, _IDLE + "large values are freed in small steps in any case."),
    D("lazyfree-lazy-user-flush", YES_NO, False, _IDLE + "large values are freed in small steps in any case."),
    D("lfu-decay-time", _COUNT, 1, _IDLE + "nothing is evicted."),
    D("lfu-log-factor", _COUNT, 10, _IDLE + "nothing is evicted."),
    D("list-compress-depth", _COUNT, 0, _IDLE + "lists are not compressed."),
    D("maxmemory-clients", choice("0"), "0", "Always 0: clients are bounded by client-output-buffer-limit and client-query-buffer-limit."),
    D("maxmemory-eviction-tenacity", integer(0, 100), 10, _IDLE + "nothing is evicted."),
    D("maxmemory-samples", integer(1, 64), 5, _IDLE + "nothing is evicted."),
    D("notify-keyspace-events", choice(""), "", "Always empty: there are no keyspace notifications."),
    D("rdb-save-incremental-fsync", YES_NO, True, _IDLE + "files are synced once they are whole."),
    D("rdbchecksum", choice("yes"), "yes", "Always yes: snapshots have checksums.", mutable=False),
    D("rdbcompression", YES_NO, True, _IDLE + "only streams are compressed, by stream-compression."),
    D("sanitize-dump-payload", choice("no", "yes", "clients"), "yes", _IDLE + "what RESTORE is given is checked in any case."),
    D("stream-node-max-bytes", MEMORY, 4096, _IDLE + "nodes of streams have a size of their own."),
    D("stream-node-max-entries", _COUNT, 100, _IDLE + "nodes of streams have a size of their own."),
    D("tracking-table-max-keys", _COUNT, 1_000_000, _IDLE + "there is no client-side caching."),
    # encodings, as OBJECT ENCODING reports them
    D("hash-max-listpack-entries", _COUNT, 512, "Fields up to which OBJECT ENCODING calls a hash a listpack.", aliases=("hash-max-ziplist-entries",)),
    D("hash-max-listpack-value", _COUNT, 64, "Length up to which OBJECT ENCODING calls a hash a listpack.", aliases=("hash-max-ziplist-value",)),
    D("list-max-listpack-size", integer(-5, 1 << 30), -2, "Size up to which OBJECT ENCODING calls a list a listpack.", aliases=("list-max-ziplist-size",)),
    D("set-max-intset-entries", _COUNT, 512, "Members up to which a set of integers is answered in their order, and called an intset by OBJECT ENCODING."),
    D("zset-max-listpack-entries", _COUNT, 128, "Members up to which OBJECT ENCODING calls a sorted set a listpack.", aliases=("zset-max-ziplist-entries",)),
    D("zset-max-listpack-value", _COUNT, 64, "Length up to which OBJECT ENCODING calls a sorted set a listpack.", aliases=("zset-max-ziplist-value",)),
)  # fmt: skip


_BY_NAME = {name: directive for directive in DIRECTIVES.values() for name in (directive.name, *directive.aliases)}


def find_directive(name: str) -> Directive | None:
    """The directive of a name or an older name, in upper or lower case."""
    return _BY_NAME.get(name.lower())


class Config:
    """The values in force. Attributes are directive names with underscores."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        for directive in DIRECTIVES.values():
            self._assign(directive, directive.default)
        self._listeners: dict[str, list[Callable[[Any], None]]] = {}
        self.given: set[str] = set()  # named in the file or on the command line
        self.file: str | None = None  # where CONFIG REWRITE writes
        self.on_change("dir", _check_folder)

    if TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any: ...

    def _assign(self, directive: Directive, value: Any) -> None:
        """Values are plain attributes: commands read some of them on every call."""
        self._values[directive.name] = value
        setattr(self, directive.attribute, value)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def path(self, name: str) -> Path:
        """The file that a directive names; `dir` is where a relative path begins, as in Redis."""
        return Path(self._values["dir"], self._values[name])

    def show(self, name: str) -> str:
        """The value as CONFIG GET prints it."""
        return DIRECTIVES[name].kind.show(self._values[name])

    def on_change(self, name: str, listener: Callable[[Any], None]) -> None:
        """Call `listener(new value)` after each change; it may raise ValueError, which undoes the change."""
        self._listeners.setdefault(name, []).append(listener)

    def load(self, name: str, words: list[str], where: str = "") -> None:
        """Set a directive at start. `where` is put in front of an error: "line 3"."""
        directive = find_directive(name)
        if directive is None:
            raise ConfigError(f"{where}unknown directive '{name}'")
        try:
            value = directive.kind.parse(words)
        except ValueError as error:
            shown = "" if directive.secret else f" ('{' '.join(words)}')"
            raise ConfigError(f"{where}directive '{name}'{shown}: {error}") from None
        if directive.repeated:
            value = [*self._values[directive.name], " ".join(words)]
        elif directive.kind is SAVE and directive.name in self.given and value:
            value = self._values[directive.name] + value
        elif directive.kind is BUFFER_LIMITS:
            value = {**self._values[directive.name], **value}
        self._assign(directive, value)
        self.given.add(directive.name)

    def replace(self, name: str, value: Any) -> None:
        """At start: put a value in force instead of one that this machine cannot give."""
        self._assign(DIRECTIVES[name], value)

    def change(self, pairs: Iterable[tuple[Directive, str]]) -> None:
        """CONFIG SET: all of it or, when one value is refused, none of it."""
        new = [(directive, self._parse(directive, text)) for directive, text in pairs]
        before = [(directive, self._values[directive.name]) for directive, _ in new]
        for directive, value in new:
            self._assign(directive, value)
        for told, (directive, value) in enumerate(new):
            try:
                self._tell(directive, value)
            except (ValueError, OSError) as error:
                for changed, old in before:
                    self._assign(changed, old)
                for changed, old in before[: told + 1]:
                    with suppress(
                        ValueError, OSError
                    ):  # files for TLS, which may be gone: what was made of them is in use
                        self._tell(changed, old)
                raise ChangeRefused(directive, getattr(error, "strerror", None) or str(error)) from None
        self.given.update(directive.name for directive, _ in new)

    def _parse(self, directive: Directive, text: str) -> Any:
        try:
            value = directive.kind.parse(directive.kind.words(text))
        except ValueError as error:
            raise ChangeRefused(directive, str(error)) from None
        return {**self._values[directive.name], **value} if directive.kind is BUFFER_LIMITS else value

    def _tell(self, directive: Directive, value: Any) -> None:
        for listener in self._listeners.get(directive.name, ()):
            listener(value)


def _check_folder(path: str) -> None:
    os.scandir(path).close()  # raises what keeps us from using it


def lines_of(text: str) -> list[str]:
    """The lines of a file. Only a line feed ends one: a value may have any of the others that Python knows."""
    return text.removesuffix("\n").split("\n") if text else []


def parse_file(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """(line number, name, words) of every directive in a file; comments and blank lines are passed over."""
    for number, line in enumerate(lines_of(text), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            raw = split_inline(line.encode("utf-8", "surrogateescape"))
        except PenstockError:
            raise ConfigError(f"line {number}: unbalanced quotes") from None
        name, *words = [word.decode("utf-8", "surrogateescape") for word in raw]
        yield number, name, words


def build(file_text: str | None = None, arguments: Iterable[tuple[str, list[str]]] = ()) -> Config:
    """A Config from a file's text, then the command line's directives on top of it."""
    config = Config()
    if file_text is not None:
        for number, name, words in parse_file(file_text):
            config.load(name, words, f"line {number}: ")
    if file_text is not None and "save" in config.given and any(name == "save" for name, _ in arguments):
        config.given.discard("save")
    for name, words in arguments:
        config.load(name, words, "command line: ")
    return config
