"""Every event that a server logs: a stable name, and names for the values in its text. For `log-format json`.

The text of a log call is its key here, so calls are ordinary calls of `logging`, and one that is not listed is found by
a test, which reads the source. A text may be improved; the name of its event stays.

To add a log call: a row here, and `make docs`. Rejected: a name at each call, which would have to be looked for to be
documented, and values that are named twice, in the text and in the call.
"""

from __future__ import annotations

from typing import NamedTuple

OTHER = "other"
"""The event of a text that is not listed: a module's, or a library's."""


class Event(NamedTuple):
    """A kind of record."""

    name: str
    level: str
    text: str  # as the call has it, with its placeholders
    fields: tuple[str, ...]  # the names of these values in JSON
    help: str


def _events(level: str, *rows: tuple[str, str, str, str]) -> list[Event]:
    """Events of a level: name, text, fields separated by blanks, help."""
    return [Event(name, level, text, tuple(fields.split()), help) for name, text, fields, help in rows]


ALL: list[Event] = [
    *_events(
        "error",
        ("start-failed", "cannot start: %s", "error", "The server ends. The message names the directive or the file."),
        ("shutdown-refused", "the data cannot be written (%s), so the server goes on. When it can be, send the signal "
         "again; to end without it, press Ctrl-C (SIGINT) twice within %d seconds, or send SHUTDOWN FORCE",
         "error seconds", "A signal asked the server to end, and the log or the snapshot cannot be written."),
        ("certificates-refused", "the old certificates stay in use: %s", "error", "SIGHUP, and new files are wrong."),
        ("log-write-failed", "the log cannot be written: %s; writes are refused until it can be", "error",
         "The disk is full or broken. It is tried again every second."),
        ("log-end-lost", "the log could not be written to its end: %s", "error", "At the end of the server."),
        ("log-rewrite-failed", "the log could not be rewritten: %s", "error", "The old files stay in use."),
        ("snapshot-failed", "the snapshot %s could not be written: %s", "file error",
         "The old one stays. With save rules it is tried again."),
        ("values-left-out", "%s is written without what a module put there and cannot be written: %s", "file keys",
         "A snapshot or the base of a log. The elements or values are in memory only."),
        ("last-snapshot-failed", "no last snapshot: %s", "error", "At the end of the server."),
        ("reload-failed", "cannot reload: %s", "error", "DEBUG RELOAD or LOADAOF found something it cannot read."),
        ("history-write-failed", "history cannot be written: %s; it is tried again every second", "error",
         "Messages stay in memory; when that is full, new ones are refused."),
        ("history-folder-failed", "the folder of history cannot be used: %s", "error", "At the start."),
        ("history-lost", "history of the stream %r: %s; reads of it get an error", "stream error",
         "A file of old messages is missing or damaged. `penstock check --fix` says what is lost."),
        ("history-unreadable", "the stream %s %s: %s", "stream consequence error",
         "The periodic work found a lost file of old messages."),
        ("replica-failed", "replica %s:%d cannot be served: %s", "host port error", "It connects again."),
        ("agent-unreachable", "the agent cannot be reached: %s", "error", "A server of a shard stops."),
        ("agent-gone", "the agent of this server is gone: stopping", "", "A server of a shard stops."),
        ("stop-waits", "the data cannot be written (%s): this server tries for %d seconds, and ends", "error seconds",
         "A server of a shard was told to end, and its disk is full, or broken."),
        ("stopped-incomplete", "ending, with %d bytes of changes that %s does not have (%s); no client was told "
         "that they are kept. Make room there, and start this node again", "bytes file error",
         "`shard-stop-timeout` is over."),
        ("server-killed", "the server has not ended for %g seconds (shard-stop-timeout): killing it. What its log has "
         "is kept; a last snapshot, and what its disk refused, are not written", "seconds",
         "By the agent: the server was stopped, or its disk does not answer."),
        ("order-failed", "cannot %s: %s", "order error", "What the agent ordered failed."),
        ("disk-hand-over", "the log of this leader cannot be written: handing over to %s", "heir", "Its disk is full."),
        ("resign-failed", "cannot end leading: %s", "error", "A server whose lease has run out refuses writes."),
        ("server-stuck", "the server makes no progress: giving up its lease", "", "The agent lets another node lead."),
        ("internal-error-lease", "internal error while the lease was renewed", "", "A bug: please report it."),
        ("internal-error-agent", "internal error of the agent", "", "A bug: please report it."),
        ("internal-error", "internal error in %r", "command", "A bug: please report it with its trace."),
        ("internal-error-input", "internal error in the input of %s", "client", "A bug: please report it."),
        ("internal-error-periodic", "internal error in the periodic work", "", "A bug: please report it."),
        ("internal-error-lazy", "internal error in LAZY %r", "command", "A bug: please report it."),
        ("internal-error-thread", "internal error in a thread", "", "A bug: please report it."),
        ("internal-error-script", "internal error in a script's %r", "command", "A bug: please report it."),
        ("internal-error-replay", "internal error in %r, replayed from %s", "command file", "A bug: please report it."),
        ("internal-error-history", "internal error in the thread of history", "", "A bug: please report it."),
        ("internal-error-following", "internal error while following %s:%d", "host port", "A bug: please report it."),
        ("internal-error-metrics", "internal error in the answer to a monitoring program", "",
         "A bug: please report it."),
        ("busy-script-deaf", "cannot read from other clients", "", "A bug: a busy script keeps others from an answer."),
        ("close-failed", "a connection could not be closed", "", "A bug: please report it."),
        ("reply-lost", "a reply could not be sent", "", "A bug: one client gets no answer."),
    ),
    *_events(
        "warning",
        ("snapshot-retry", "the snapshot is tried again in %d seconds", "seconds", "The line before says why."),
        ("snapshot-recovered", "snapshots can be written again: %d attempts failed before", "attempts",
         "Writes that were refused (MISCONF) are accepted again."),
        ("accept-failed", "cannot accept a client: %s", "error", "The system has no descriptors or memory left."),
        ("metrics-accept-failed", "cannot accept a connection for metrics: %s", "error", "The same, for metrics."),
        ("pidfile-failed", "cannot write the pidfile %s: %s", "file error", "The server starts without it."),
        ("stop-forced", "asked to stop a second time: leaving at once", "", "A second Ctrl-C; nothing is saved."),
        ("client-unread", "closing client %s (id %d): it does not read, and %d bytes of commands and %d of replies "
         "wait, more than client-query-buffer-limit", "client id commands replies", "It sends and does not read."),
        ("client-behind", "closing client %s (id %d): %d bytes wait to be read, more than client-output-buffer-limit "
         "%s allows", "client id bytes class", "It reads too slowly."),
        ("client-evicted", "closing client %s (id %d): it takes %d bytes, and all clients together more than "
         "maxmemory-clients", "client id bytes", "The one that takes most is closed."),
        ("maxclients-lowered", "maxclients is %d instead of %d, because the limit of open files is %d: increase "
         "'ulimit -n' for more clients", "maxclients wanted limit", "At the start."),
        ("log-write-recovered", "the log can be written again", "", "Writes are accepted again."),
        ("log-off-incomplete", "the log is off; its end could not be written: %s", "error",
         "CONFIG SET appendonly no."),
        ("log-torn", "%s; cutting the file there, what follows was never acknowledged", "problem",
         "The server was killed, or the machine lost power, in the middle of a write."),
        ("log-replay-failed", "%s: %d commands failed when replayed, the first with: %s", "file commands error",
         "The log has commands that this server refuses."),
        ("log-not-read", "%s holds a log, and `appendonly no` does not read it. If data is missing, start with "
         "--appendonly yes; if the log is not needed, move that folder away", "folder",
         "The log was turned off, or an older version wrote it."),
        ("snapshot-empty-values", "%s: %d keys with empty values are left out (block at byte %d)", "file keys at",
         "A snapshot has keys that no server writes."),
        ("history-off", "history is off, because it is kept in %s, and dir is another folder now", "folder",
         "CONFIG SET dir."),
        ("history-write-recovered", "history can be written again", "", "Files can be written again."),
        ("history-file-stays", "the file %s of history is not needed, and cannot be removed: %s", "file error",
         "It takes disk space."),
        ("dead-letters-refused", "stream %s, group %s: no dead letters for %d-%d, %s %s",
         "stream group first last target reason", "The messages stay in the stream; the group is done with them."),
        ("thread-given-up", "given up on %r, which is still in its thread", "command", "At the end of the server."),
        ("script-busy", "Slow script detected: still in execution after %d milliseconds.", "milliseconds",
         "Other clients get BUSY; SCRIPT KILL ends it if it has written nothing."),
        ("debug-log", "DEBUG LOG: %s", "text", "DEBUG LOG."),
        ("replica-silent", "replica %s:%d was silent for %d seconds", "host port seconds", "It is disconnected."),
        ("leader-failed", "leader %s:%d: %s; trying again", "host port problem", "A replica cannot follow."),
        ("feed-command-failed", "a command of the feed failed: %s", "error", "A replica is not equal to its leader."),
        ("feed-commands-failed", "%d commands of the feed failed; the last one: %s", "count error",
         "Since the line before; there is one a minute at most."),
        ("lease-lapsed", "the lease of this server has run out: it takes no more writes", "", "Another may lead."),
        ("lease-lost", "the lease has run out", "", "Of the agent; it asks for another."),
        ("lease-not-renewed", "the lease could not be renewed: %s", "error", "etcd cannot be reached."),
        ("lease-not-returned", "the lease could not be given back, and will run out: %s", "error", "At the end."),
        ("agent-failed", "the agent cannot do its work: %s", "error", "It is tried again."),
        ("etcd-unsafe", "etcd %s may lose what it has confirmed when a member is killed: use 3.5.6 or later",
         "etcd_version", "Use a newer etcd."),
        ("server-restarts", "the server has ended (%d); it is started again in %g s", "code seconds",
         "By the agent of a node."),
        ("in-sync-unchanged", "the in-sync set could not be changed: %s", "error", "It is tried again."),
        ("shard-resigns", "too few nodes follow this one: handing over to %s", "node", "Another node leads then."),
        ("log-diverged", "%d bytes of the log were never taken by the new leader; they are kept in %s", "bytes file",
         "This server led, and wrote what no replica had."),
    ),
    *_events(
        "notice",
        ("ready", "Ready to accept connections on %s", "addresses", "The data is loaded."),
        ("inner-loop", "The inner loop is %s", "kind", "Compiled, or plain Python."),
        ("signal", "Received %s", "signal", "A signal to end."),
        ("stopped-while-loading", "Asked to stop while loading: leaving everything on disk as it is", "",
         "Nothing was changed."),
        ("shutting-down", "Shutting down", "", "No command runs any more."),
        ("bye", "Bye", "", "The last line."),
        ("certificates-read", "Read the certificates for TLS again", "", "SIGHUP."),
        ("open-files-raised", "Increased the limit of open files from %d to %d, for maxclients %d",
         "before after maxclients", "At the start."),
        ("loaded", "loaded %d keys in %.3f seconds", "keys seconds", "The data is in memory."),
        ("loading-log", "loading the log in %s", "folder", "At the start."),
        ("loading-log-progress", "loading the log: %d MB", "megabytes", "Now and then."),
        ("loading-snapshot", "loading the snapshot %s", "file", "At the start."),
        ("loading-snapshot-progress", "loading the snapshot: %d keys", "keys", "Now and then."),
        ("snapshot-written", "snapshot written to %s", "file", "By SAVE, BGSAVE or a save rule."),
        ("log-rewritten", "the log was rewritten: %d bytes", "bytes", "By BGREWRITEAOF, or because it had grown."),
        ("history-strays-removed", "removed %d files of history that nothing refers to", "files", "A crash left them."),
        ("replica-follows", "replica %s:%d follows from offset %d", "host port offset", "It gets all changes."),
        ("replica-copies", "replica %s:%d copies everything", "host port", "A full copy begins."),
        ("replica-gone", "replica %s:%d is gone", "host port", "Its connection has ended."),
        ("following", "following %s:%d from offset %d", "host port offset", "This replica gets all changes."),
        ("copying", "copying %d bytes and %d files of history from %s:%d", "bytes files host port",
         "This replica copies everything."),
        ("became-replica", "this server is a replica of %s:%d now", "host port", "By REPLICAOF, or at the start."),
        ("became-leader", "this server leads now", "", "By REPLICAOF NO ONE, or a failover."),
        ("shard-leads", "leading shard %s in epoch %d", "shard epoch", "This server may write."),
        ("failover-waits", "handing over to a replica: waiting until it has everything", "", "FAILOVER."),
        ("failover-begins", "handing over to %s:%d", "host port", "FAILOVER."),
        ("failover-done", "handed over", "", "The replica leads."),
        ("failover-failed", "handing over failed: %s", "problem", "This server goes on leading."),
    ),
    *_events(
        "verbose",
        ("node-leads", "this node leads shard %s in epoch %d", "shard epoch", "The agent has it from etcd."),
        ("in-sync", "in sync: %s", "nodes", "The nodes that may lead next."),
        ("client-closed", "closing client %s: %s", "client reason", "A client was refused or went away."),
        ("client-idle", "closing idle client %s", "client", "It was idle for longer than `timeout`."),
        ("metrics-closed", "closing a connection for metrics: %s", "reason", "It went away, or cannot speak TLS."),
        ("child-started", "process %d writes %s", "child file", "A snapshot, or a new base of the log."),
        ("folder-not-locked", "%s cannot be locked: %s", "folder error", "The file system has no locks."),
        ("history-file-missing", "the leader no longer has %s; its messages stay in memory", "file",
         "On a replica."),
    ),
    *_events(
        "debug", ("module-failed", "the module %s cannot be loaded", "module", "With the trace of its error.")
    ),
    *_events("any", ("script-log", "%s", "text", "redis.log of a script, at the level that it names.")),
]  # fmt: skip

BY_TEXT = {event.text: event for event in ALL}
