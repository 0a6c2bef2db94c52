"""Every directive, declared once: its name, its type, its default, its help, whether it may change at run time.

The file, the command line, CONFIG GET/SET/REWRITE and the reference page in docs/ all come from the class below. To add
a directive: one line there. Its name is that of the attribute, with hyphens.

To mypy an attribute has the type of the directive's values, so a wrong name or a wrong type is found where
`config.name` is read. At run time the class holds the Directives and a Config the values. Rejected: a table of names,
whose values had no type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from penstock.engine.directive_kinds import (
    ADDRESS,
    BACKLOG,
    BUFFER_LIMITS,
    FOLDER,
    INT_MAX,
    LENGTH,
    MEMORY,
    MEMORY_OR_PERCENT,
    MODULE,
    OOM_SCORES,
    SAVE,
    TEXT,
    USER,
    WORDS,
    YES_NO,
    Kind,
    choice,
    clamped,
    file_name,
    integer,
)  # fmt: skip
from penstock.types.xstream import LARGEST_BLOCK

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Directive:
    """One setting."""

    name: str
    kind: Kind[Any]
    default: Any
    help: str
    mutable: bool = True
    secret: bool = False  # not shown in logs
    repeated: bool = False  # several lines of a file add up instead of replacing each other; not shown by CONFIG GET
    protected: bool = False  # CONFIG SET takes it only if enable-protected-configs says so
    aliases: tuple[str, ...] = ()  # older names, which CONFIG and the file know too
    hidden: bool = False  # CONFIG GET shows it by its name only, not by a pattern

    @property
    def default_text(self) -> str:
        """The default as it is written in the declaration: a folder is not made absolute."""
        return (str(self.default) if self.kind.is_text else self.kind.show(self.default)) or '""'

    @property
    def attribute(self) -> str:
        """Its name in Python."""
        return self.name.replace("-", "_")


def D(  # noqa: N802  # short, as a table has a hundred of them
    kind: Kind[T], default: T, help: str, *, mutable: bool = True, secret: bool = False, repeated: bool = False,
    protected: bool = False, aliases: tuple[str, ...] = (), hidden: bool = False,
) -> T:  # fmt: skip
    """Declare a directive; see Directive. For mypy it has the type of the directive's value."""
    return cast(T, Directive("", kind, default, help, mutable, secret, repeated, protected, aliases, hidden))


_PORT = integer(0, 65535)
_COUNT = integer(0, (1 << 63) - 1)
_IDLE = "Accepted, and without effect: "


class Settings:
    """The directives as attributes."""

    # network
    port = D(_PORT, 6379, "TCP port for plain connections; 0 turns them off.")
    bind = D(
        WORDS,
        ["127.0.0.1", "-::1"],
        "Addresses to listen on; one with a leading - is skipped if this machine lacks it.",
    )
    unixsocket = D(TEXT, "", "Path of a Unix socket to listen on; empty for none.", mutable=False)
    unixsocketperm = D(TEXT, "0", "Mode of the Unix socket in octal; 0 leaves it to the umask.", mutable=False)
    protected_mode = D(YES_NO, True, "Refuse clients from other machines while the default user has no password.")
    tcp_backlog = D(
        integer(1, 65535),
        4096,
        "Connections the kernel may hold before they are accepted; it holds no more than its own net.core.somaxconn.",
        mutable=False,
    )
    tcp_keepalive = D(integer(0, INT_MAX), 300, "Seconds between keep-alive probes to silent clients; 0 for none.")
    timeout = D(integer(0, INT_MAX), 0, "Close a client that was idle for this many seconds; 0 never.")
    maxclients = D(
        integer(1, 1 << 20),
        10000,
        "Connections at once; one more gets an error and is closed. Lowered at start if the limit of open files is "
        "too low for them.",
    )
    tls_port = D(_PORT, 0, "TCP port for TLS connections; 0 turns them off.")
    tls_cert_file = D(
        TEXT,
        "",
        "PEM file with the server's certificate chain, inside dir unless the path is absolute. Setting it, even to "
        "the same name, reads it again; so does SIGHUP.",
    )
    tls_key_file = D(TEXT, "", "PEM file with the server's private key; likewise.")
    tls_key_file_pass = D(TEXT, "", "Pass phrase of the private key.", secret=True)
    tls_ca_cert_file = D(
        TEXT, "", "PEM file with the authorities of client certificates. It is read again in the same way."
    )
    tls_auth_clients = D(choice("yes", "no", "optional"), "yes", "Whether TLS clients must show a certificate.")
    # monitoring
    metrics_port = D(
        _PORT, 0, "TCP port for monitoring programs, which speak HTTP: /metrics, /healthz, /readyz; 0 turns it off."
    )
    metrics_bind = D(
        WORDS,
        ["127.0.0.1", "-::1"],
        "Addresses of that port. One that other machines can reach needs metrics-password, or metrics-tls with "
        "tls-auth-clients yes, or metrics-protected-mode no.",
    )
    metrics_user = D(TEXT, "metrics", "User name that /metrics asks for if there is a metrics-password.")
    metrics_password = D(TEXT, "", "Password that /metrics asks for; empty for none.", secret=True)
    metrics_tls = D(
        YES_NO, False, "Speak HTTPS on metrics-port, with the certificates of tls-cert-file and tls-auth-clients."
    )
    metrics_protected_mode = D(
        YES_NO, True, "Refuse addresses in metrics-bind that other machines can reach if nothing protects them."
    )
    metrics_streams = D(
        integer(0, 10_000),
        100,
        "Streams that have series of their own in /metrics, the largest ones, and as many groups, those furthest "
        "behind. All others are one series, their sum.",
    )
    # limits
    proto_max_bulk_len = D(LENGTH, 512 << 20, "Longest single argument, in bytes.")
    client_query_buffer_limit = D(
        LENGTH,
        1 << 30,
        "Most bytes held of a command that is not whole yet, and of the commands and replies of a client that does "
        "not read.",
    )
    client_output_buffer_limit = D(
        BUFFER_LIMITS,
        {"normal": (0, 0, 0), "replica": (256 << 20, 64 << 20, 60), "pubsub": (32 << 20, 8 << 20, 60)},
        "Unsent replies after which a client is closed: hard, or soft for some seconds.",
    )
    maxmemory = D(MEMORY, 0, "Memory after which commands that may need more are refused with OOM; 0 for no limit.")
    maxmemory_clients = D(
        MEMORY_OR_PERCENT,
        0,
        "Memory that all clients together may take, in bytes or as a percentage of maxmemory; 0 for no limit. "
        "Beyond it, the client that takes the most is closed.",
    )
    maxmemory_policy = D(
        choice("noeviction"),
        "noeviction",
        "What to do at maxmemory: refuse writes. Keys are never evicted.",
    )
    busy_reply_threshold = D(
        _COUNT, 5000, "Milliseconds after which a running script is called busy.", aliases=("lua-time-limit",)
    )
    # general
    databases = D(integer(1, 1024), 16, "Number of databases.", mutable=False)
    daemonize = D(
        choice("no"), "no", "Always no: a supervisor or a shell keeps the server in the background.", mutable=False
    )
    loglevel = D(choice("debug", "verbose", "notice", "warning"), "notice", "Lowest level of messages that are logged.")
    logfile = D(TEXT, "", "File to log to; empty logs to standard output.", mutable=False)
    log_format = D(choice("text", "json"), "text", "One line a record: for people, or one JSON object.", mutable=False)
    pidfile = D(TEXT, "", "File to write the process id to.", mutable=False)
    hz = D(clamped(1, 500), 10, "Times a second that expiry, idle clients and save rules are checked.")
    always_show_logo = D(
        YES_NO, True, "Show the banner at start, also when the output is not a terminal.", mutable=False
    )
    # users
    requirepass = D(TEXT, "", "Password of the default user.", secret=True)
    aclfile = D(
        TEXT,
        "",
        "File with the users, inside dir unless the path is absolute. The server does not start without it; ACL SAVE "
        "writes it, ACL LOAD reads it.",
        mutable=False,
    )
    user = D(
        USER,
        [],
        "A user and its rules, as ACL SETUSER takes them; one line each. A user starts without any permission, "
        "default too.",
        mutable=False,
        repeated=True,
    )
    acllog_max_len = D(_COUNT, 128, "Refusals that ACL LOG keeps.")
    acl_pubsub_default = D(choice("allchannels", "resetchannels"), "resetchannels", "Channels a new user may use.")
    # threads
    worker_threads = D(
        integer(0, 64),
        2,
        "Threads for the slow part of commands that touch much, and for compression, and as many again for commands "
        "of modules; 0 runs everything on the loop.",
    )
    worker_threshold = D(
        integer(1, 1 << 62), 10_000, "Number of elements from which on a command runs in a thread or in slices."
    )
    module = D(
        MODULE,
        [],
        "Python module with further commands to load: a dotted name or a .py file; one line each.",
        mutable=False,
        repeated=True,
        aliases=("loadmodule",),
    )
    # durability
    dir = D(FOLDER, ".", "Folder for the log and the snapshots.", protected=True)
    dbfilename = D(file_name("dbfilename"), "dump.pns", "File name of the snapshot, inside dir.", protected=True)
    save = D(
        SAVE, [(3600, 1), (300, 100), (60, 10000)], "Take a snapshot when so many seconds passed with so many changes."
    )
    stop_writes_on_bgsave_error = D(
        YES_NO,
        True,
        "Refuse writes while snapshots fail, so that the failure is noticed. With save rules, a snapshot that failed "
        "is tried again after 5 seconds, or after ten times as long as it took, up to a minute.",
    )
    appendonly = D(
        YES_NO,
        False,
        "Log every change to the append-only file. CONFIG SET to yes is answered when the log holds everything, so "
        "that later changes survive a crash.",
    )
    appendfilename = D(
        file_name("appendfilename"), "appendonly.aof", "First part of the log's file names.", mutable=False
    )
    appenddirname = D(
        file_name("appenddirname", "dirname"), "appendonlydir", "Folder for the log's files, inside dir.", mutable=False
    )
    appendfsync = D(
        choice("everysec", "always", "no"),
        "everysec",
        "When the log reaches the disk: before a reply, once a second, or when the system decides.",
    )
    no_appendfsync_on_rewrite = D(YES_NO, False, "Do not sync the log while a child writes a snapshot or a new base.")
    auto_aof_rewrite_percentage = D(
        _COUNT, 100, "Rewrite the log when it grew by this much since the last time; 0 never."
    )
    auto_aof_rewrite_min_size = D(MEMORY, 64 << 20, "Never rewrite a log smaller than this by itself.")
    aof_load_truncated = D(YES_NO, True, "Cut a torn last record off and start; no refuses to start.")
    aof_timestamp_enabled = D(YES_NO, False, "Write the time into the log, for reading it.")
    # replicas
    replicaof = D(
        ADDRESS,
        [],
        "Host and port of the server to follow; empty for none. REPLICAOF changes it.",
        mutable=False,
        aliases=("slaveof",),
    )
    masteruser = D(TEXT, "", "User to log in as at the server that is followed; empty for the default user.")
    masterauth = D(TEXT, "", "Password for the server that is followed.", secret=True)
    tls_replication = D(YES_NO, False, "Follow over TLS, with the certificate of tls-cert-file.")
    replica_read_only = D(
        choice("yes"),
        "yes",
        "Always yes: a replica's log is that of its leader, byte for byte.",
        aliases=("slave-read-only",),
    )
    replica_serve_stale_data = D(
        YES_NO,
        True,
        "Answer reads while the server that is followed cannot be reached; no answers MASTERDOWN.",
        aliases=("slave-serve-stale-data",),
    )
    replica_priority = D(
        integer(0, INT_MAX),
        100,
        "Sentinel prefers a replica with a lower number, and never promotes one with 0. With replica-acks it prefers "
        "the one that has most.",
        aliases=("slave-priority",),
    )
    replica_announced = D(YES_NO, True, "Whether Sentinel shows this replica to clients.")
    replica_announce_ip = D(
        TEXT, "", "Address under which others reach this replica; empty for the one it connects from.",
        aliases=("slave-announce-ip",),
    )  # fmt: skip
    replica_announce_port = D(
        _PORT, 0, "Port under which others reach this replica; 0 for its own.", aliases=("slave-announce-port",)
    )
    replica_acks = D(
        integer(0, 100),
        0,
        "How many replicas must have a change in their logs before it is acknowledged. Without so many replicas, "
        "writes are refused.",
    )
    min_replicas_to_write = D(
        integer(0, INT_MAX),
        0,
        "Refuse writes while fewer replicas than this follow; 0 never.",
        aliases=("min-slaves-to-write",),
    )
    min_replicas_max_lag = D(
        integer(0, INT_MAX),
        10,
        "Seconds since its last sign of life after which a replica does not count for min-replicas-to-write.",
        aliases=("min-slaves-max-lag",),
    )
    repl_backlog_size = D(
        BACKLOG,
        256 << 20,
        "Bytes of the log that are kept for replicas that are away, beyond the current file; 16384 at least. They are "
        "on disk.",
    )
    repl_backlog_ttl = D(_COUNT, 3600, "Seconds without any replica after which these bytes are removed; 0 keeps them.")
    repl_timeout = D(
        integer(1, INT_MAX), 60, "Seconds of silence after which a replica, or its leader, counts as gone."
    )
    repl_ping_replica_period = D(
        integer(1, INT_MAX),
        10,
        "Seconds between signs of life to replicas.",
        aliases=("repl-ping-slave-period",),
    )
    # shards
    etcd = D(
        TEXT, "", "URLs of etcd, with commas between them: etcd decides which server of the shard leads.", mutable=False
    )
    etcd_user = D(TEXT, "", "User to log in to etcd as; empty for none.", mutable=False)
    etcd_password = D(TEXT, "", "Password of that user.", mutable=False, secret=True)
    etcd_ca_file = D(TEXT, "", "Certificates of the authority of etcd (https); empty for the system's.", mutable=False)
    etcd_cert_file = D(TEXT, "", "Certificate that is shown to etcd.", mutable=False)
    etcd_key_file = D(TEXT, "", "Private key of that certificate.", mutable=False)
    shard = D(TEXT, "", "Name of the shard that this server belongs to.", mutable=False)
    node = D(TEXT, "", "Name of this server in its shard; no other has it.", mutable=False)
    shard_lease = D(
        integer(2, 3600),
        2,
        "Seconds after which a leader that cannot be reached, or makes no progress, is replaced.",
        mutable=False,
    )
    shard_stop_timeout = D(
        integer(1, 3600),
        60,
        "Seconds that a server of a shard may take to end, for instance because its disk is full. Then it ends without "
        "what cannot be written, and five seconds later its agent kills it.",
        mutable=False,
    )
    in_sync_max_lag = D(
        integer(10, INT_MAX),
        1000,
        "Milliseconds that a replica of a shard may be behind before it leaves the in-sync set.",
    )
    # streams
    stream_compression = D(
        choice("none", "lz4", "zstd"), "lz4", "Compression of nodes that are no longer hot, in memory and on disk."
    )
    stream_compression_backlog = D(
        MEMORY,
        256 << 20,
        "Bytes of messages that may wait uncompressed, of all streams together; 0 compresses at once.",
    )
    stream_compression_rest = D(
        integer(0, 1 << 40),
        10_000,
        "Milliseconds for which new messages stay uncompressed, because they are read soon; up to twice as long.",
    )
    stream_hot_nodes = D(
        integer(0, 1 << 20), 8, "Sealed nodes of a stream that stay ready to be sent, the newest ones."
    )
    stream_max_pending = D(
        integer(1, 1 << 40), 1000, "Messages a group may have unacknowledged before it gets no new ones."
    )
    stream_memory = D(
        MEMORY_OR_PERCENT,
        -25,
        "Memory that the messages of all streams may take, in bytes or as a percentage of the machine's; older ones go "
        "to files. 0 keeps all in memory. Only with appendonly yes, or with save rules.",
    )
    stream_history_max = D(
        MEMORY,
        0,
        "Bytes that the files of all streams may take; 0 for no limit. At the limit stream-history-full applies.",
    )
    stream_history_full = D(
        choice("evict", "refuse"),
        "evict",
        "When the files reach stream-history-max: evict the oldest messages of all streams, or write no more files and "
        "refuse new messages when memory is full too.",
    )
    stream_stage_timeout = D(
        integer(1000, 1 << 40),
        3_600_000,
        "Milliseconds after which entries that were staged and not committed are removed.",
    )
    # exactly once
    once_max_bytes = D(
        MEMORY,
        256 << 20,
        "Bytes of replies kept for ONCE; at that size a client that keeps more than its share (this, divided by the "
        "number of clients) is refused with ONCEFULL.",
    )
    once_idle_timeout = D(
        integer(1000, 1 << 40), 3_600_000, "Milliseconds after which a client of ONCE that sent nothing is forgotten."
    )
    once_gone_timeout = D(
        integer(1000, 1 << 40),
        120_000,
        "Milliseconds after which a client of ONCE whose connection has ended is forgotten; later if it has said so "
        "(PATIENCE of ONCEBEGIN), but not later than after once-idle-timeout.",
    )
    # LAZY
    lazy_queue_enabled = D(
        integer(0, 1),
        1,
        "1 runs queued LAZY commands when the server is idle; 0 only when a command needs them or they are too old.",
    )
    lazy_max_queued = D(_COUNT, 10_000, "Commands that LAZY may have queued; one more runs at once.")
    lazy_max_bytes = D(MEMORY, 64 << 20, "Bytes of commands that LAZY may have queued; commands beyond it run at once.")
    lazy_max_age = D(
        _COUNT, 10_000, "Milliseconds after which a queued command runs although the server is not idle; 0 never."
    )
    # scripts and introspection
    slowlog_log_slower_than = D(
        integer(-1, (1 << 63) - 1), 10000, "Microseconds from which a command is kept in the slow log; -1 keeps none."
    )
    slowlog_max_len = D(_COUNT, 128, "Commands the slow log keeps.")
    latency_monitor_threshold = D(
        _COUNT,
        0,
        "Milliseconds from which LATENCY records a command or a fork that made clients wait; 0 records nothing.",
    )
    enable_protected_configs = D(
        choice("yes", "no", "local"),
        "no",
        "Clients that may CONFIG SET dir and dbfilename: all, none, or those on this machine.",
        mutable=False,
    )
    enable_debug_command = D(
        choice("yes", "no", "local"),
        "local",
        "Clients that may use DEBUG: all, none, or those on this machine.",
        mutable=False,
    )
    enable_module_command = D(
        choice("no", "yes", "local"),
        "no",
        _IDLE + "there is no MODULE LOAD. Modules are loaded at start, by the directive module.",
        mutable=False,
    )
    # Directives of Redis that have nothing to tune here; accepted so that programs and test suites can set them
    activerehashing = D(YES_NO, True, _IDLE + "tables are resized as they grow.")
    active_expire_effort = D(integer(1, 10), 1, _IDLE + "expired keys are deleted as soon as there is time.")
    activedefrag = D(choice("no"), "no", "Always no: memory is not moved.")
    aof_rewrite_incremental_fsync = D(YES_NO, True, _IDLE + "files are synced once they are whole.")
    aof_use_rdb_preamble = D(choice("yes"), "yes", "Always yes: the base of the log is a snapshot.")
    close_on_replica_write = D(YES_NO, True, _IDLE + "a replica answers a client's write with READONLY.")
    cluster_enabled = D(choice("no"), "no", "Always no: there is no cluster mode.", mutable=False)
    crash_log_enabled = D(YES_NO, True, _IDLE + "Python writes its own report.")
    crash_memcheck_enabled = D(YES_NO, True, _IDLE + "Python writes its own report.")
    disable_thp = D(YES_NO, True, _IDLE + "the process uses huge pages as the system does.", mutable=False)
    dynamic_hz = D(YES_NO, True, _IDLE + "hz does not change by itself.")
    hll_sparse_max_bytes = D(MEMORY, 3000, _IDLE + "there is no HyperLogLog.")
    ignore_warnings = D(TEXT, "", _IDLE + "there are no warnings that keep the server from starting.")
    io_threads = D(integer(1, 128), 1, _IDLE + "one thread reads from all clients.", mutable=False)
    io_threads_do_reads = D(YES_NO, False, _IDLE + "one thread reads from all clients.", mutable=False)
    jemalloc_bg_thread = D(YES_NO, True, _IDLE + "there is no jemalloc.")
    key_load_delay = D(integer(-INT_MAX - 1, INT_MAX), 0, _IDLE + "loading is not slowed down for tests.", hidden=True)
    latency_tracking = D(choice("no"), "no", "Always no: LATENCY HISTOGRAM is empty.")
    lazyfree_lazy_eviction = D(YES_NO, False, _IDLE + "nothing is evicted.")
    lazyfree_lazy_expire = D(YES_NO, False, _IDLE + "large values are freed in small steps in any case.")
    lazyfree_lazy_server_del = D(YES_NO, False, _IDLE + "large values are freed in small steps in any case.")
    lazyfree_lazy_user_del = D(YES_NO, False, _IDLE + "large values are freed in small steps in any case.")
    lazyfree_lazy_user_flush = D(YES_NO, False, _IDLE + "large values are freed in small steps in any case.")
    lfu_decay_time = D(_COUNT, 1, _IDLE + "nothing is evicted.")
    lfu_log_factor = D(_COUNT, 10, _IDLE + "nothing is evicted.")
    list_compress_depth = D(_COUNT, 0, _IDLE + "lists are not compressed.")
    loading_process_events_interval_bytes = D(
        integer(1024, INT_MAX), 2 << 20, _IDLE + "clients are served while data is loaded, by time.", hidden=True
    )
    maxmemory_eviction_tenacity = D(integer(0, 100), 10, _IDLE + "nothing is evicted.")
    maxmemory_samples = D(integer(1, 64), 5, _IDLE + "nothing is evicted.")
    notify_keyspace_events = D(choice(""), "", "Always empty: there are no keyspace notifications.")
    oom_score_adj = D(choice("no"), "no", "Always no: the system's rating of the process is not changed.")
    oom_score_adj_values = D(OOM_SCORES, [0, 200, 800], _IDLE + "oom-score-adj is no.")
    proc_title_template = D(
        TEXT, "{title} {listen-addr} {server-mode}", _IDLE + "the title of the process is not changed."
    )
    propagation_error_behavior = D(
        choice("ignore", "panic", "panic-on-replicas"), "ignore", _IDLE + "a replica appends its leader's log as it is."
    )
    rdb_del_sync_files = D(choice("no"), "no", "Always no: a replica keeps a log, and needs no such files.")
    rdb_key_save_delay = D(
        integer(-INT_MAX - 1, INT_MAX), 0, _IDLE + "snapshots are not slowed down for tests.", hidden=True
    )
    rdb_save_incremental_fsync = D(YES_NO, True, _IDLE + "files are synced once they are whole.")
    repl_diskless_load = D(choice("disabled"), "disabled", "Always disabled: a copy is kept as a file.")
    repl_diskless_sync = D(YES_NO, True, _IDLE + "a replica copies files that exist already.")
    repl_diskless_sync_delay = D(_COUNT, 5, _IDLE + "a replica copies files that exist already.")
    repl_diskless_sync_max_replicas = D(_COUNT, 0, _IDLE + "a replica copies files that exist already.")
    repl_disable_tcp_nodelay = D(YES_NO, False, _IDLE + "the feed is sent as soon as it is written.")
    replica_lazy_flush = D(
        YES_NO, False, _IDLE + "large values are freed in small steps in any case.", aliases=("slave-lazy-flush",)
    )
    replica_ignore_disk_write_errors = D(
        choice("no"), "no", "Always no: a replica whose disk refuses its log applies nothing more until it can write."
    )
    replica_ignore_maxmemory = D(
        choice("yes"), "yes", "Always yes: a replica keeps what its leader keeps.", aliases=("slave-ignore-maxmemory",)
    )
    rdbchecksum = D(choice("yes"), "yes", "Always yes: snapshots have checksums.", mutable=False)
    rdbcompression = D(YES_NO, True, _IDLE + "only streams are compressed, by stream-compression.")
    sanitize_dump_payload = D(
        choice("no", "yes", "clients"), "yes", _IDLE + "the payload of RESTORE is always checked."
    )
    set_proc_title = D(YES_NO, True, _IDLE + "the title of the process is not changed.", mutable=False)
    shutdown_on_sigint = D(choice("default"), "default", "Always default: a last snapshot if there are save rules.")
    shutdown_on_sigterm = D(choice("default"), "default", "Always default: a last snapshot if there are save rules.")
    shutdown_timeout = D(integer(0, INT_MAX), 10, _IDLE + "a server that ends does not wait for its replicas.")
    stream_node_max_bytes = D(MEMORY, 4096, _IDLE + "blocks of streams are measured by entries.")
    stream_node_max_entries = D(
        clamped(0, LARGEST_BLOCK),
        100,
        "Entries of a block of a Redis stream (XADD), 10000 at most; 0 stands for 100. Trimming with ~ drops whole "
        "blocks.",
    )
    tracking_table_max_keys = D(_COUNT, 1_000_000, _IDLE + "there is no client-side caching.")
    watchdog_period = D(
        integer(0, INT_MAX), 0, _IDLE + "there is no watchdog; metrics show delays of the loop.", hidden=True
    )
    # encodings, as OBJECT ENCODING reports them
    hash_max_listpack_entries = D(
        _COUNT,
        512,
        "Fields up to which OBJECT ENCODING calls a hash a listpack.",
        aliases=("hash-max-ziplist-entries",),
    )
    hash_max_listpack_value = D(
        _COUNT, 64, "Length up to which OBJECT ENCODING calls a hash a listpack.", aliases=("hash-max-ziplist-value",)
    )
    list_max_listpack_size = D(
        integer(-5, 1 << 30),
        -2,
        "Size up to which OBJECT ENCODING calls a list a listpack.",
        aliases=("list-max-ziplist-size",),
    )
    set_max_intset_entries = D(
        _COUNT,
        512,
        "Members up to which a set of integers is answered in their order, and called an intset by OBJECT ENCODING.",
    )
    zset_max_listpack_entries = D(
        _COUNT,
        128,
        "Members up to which OBJECT ENCODING calls a sorted set a listpack.",
        aliases=("zset-max-ziplist-entries",),
    )
    zset_max_listpack_value = D(
        _COUNT,
        64,
        "Length up to which OBJECT ENCODING calls a sorted set a listpack.",
        aliases=("zset-max-ziplist-value",),
    )


def _declared() -> dict[str, Directive]:
    """The directives by name, in the order of their declarations."""
    table: dict[str, Directive] = {}
    for attribute, declared in vars(Settings).items():
        if isinstance(declared, Directive):
            name = attribute.replace("_", "-")
            table[name] = replace(declared, name=name)
    return table


DIRECTIVES: dict[str, Directive] = _declared()
_BY_NAME = {name: directive for directive in DIRECTIVES.values() for name in (directive.name, *directive.aliases)}


def find_directive(name: str) -> Directive | None:
    """The directive of a name or an older name, in upper or lower case."""
    return _BY_NAME.get(name.lower())
