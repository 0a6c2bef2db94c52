"""MEMORY: bytes that a key or the server takes. Numbers come from engine/keyspace/memory.py and the types' `size`."""

from __future__ import annotations

from penstock.engine.arguments import to_integer
from penstock.engine.concurrency.long_work import LONG
from penstock.engine.declarations import Access, Argv, Beyond, Effect, Flag, Reach, Reply, command, key
from penstock.engine.session import CLIENT, Session
from penstock.protocol.errors import syntax_error
from penstock.protocol.resp import OK, Verbatim
from penstock.types import codec
from penstock.types.packing import AN_OBJECT
from penstock.types.xstream import XStream

ENTRY = 104
"""Bytes a key takes at most for its share of the table of keys."""
LITTLE = 5 << 20
"""A server whose data takes less than this is not diagnosed."""


@command(
    "MEMORY USAGE",
    arity=-3,
    flags=Flag.READONLY | Flag.PEEKS,
    keys=key(2, Access.READ, Effect.SIGHT),
    group="server",
    syntax="key [SAMPLES count]",
    cost="O(N) with N elements in the value",
)
def memory_usage(session: Session, argv: Argv) -> Reply:
    """Answer about how many bytes a key and its value take, or null. SAMPLES is accepted; every element is counted."""
    for at in range(3, len(argv), 2):
        if argv[at].upper() != b"SAMPLES" or at + 1 == len(argv) or to_integer(argv[at + 1]) < 0:
            raise syntax_error()
    value = session.db.get(argv[2])
    if value is None:
        return None
    table = session.db.data
    key_size = AN_OBJECT + len(argv[2]) + min(table.__sizeof__() // len(table), ENTRY)
    work = len(value) if isinstance(value, XStream) else codec.elements(value)
    if work <= LONG:
        return key_size + codec.size(value)
    return session.aside(work, lambda: key_size + codec.size(value))


@command(
    "MEMORY STATS",
    arity=2,
    flags=Flag(0),
    group="server",
    cost="O(N) with N databases and clients",
    beyond=Beyond(Reach.SERVER, "counts every key"),
)
def memory_stats(session: Session, argv: Argv) -> Reply:
    """Answer how the server's memory is used, as a map of names to bytes, counts and ratios."""
    engine = session.engine
    memory = engine.memory
    memory.measure()
    used, peak, rss = memory.used_memory, memory.used_memory_peak, memory.used_memory_rss
    idle = memory.idle
    databases = {
        b"db.%d" % database.index: {
            b"overhead.hashtable.main": database.data.__sizeof__(),
            b"overhead.hashtable.expires": database.expires.__sizeof__(),
            b"overhead.hashtable.slot-to-keys": 0,
        }
        for database in engine.keyspace.databases
        if database.data
    }
    clients = CLIENT * len(engine.sessions)
    overhead = memory.used_memory_startup + clients + sum(sum(table.values()) for table in databases.values())
    data = max(used - overhead, 0)
    count = sum(len(database) for database in engine.keyspace.databases)
    return {
        b"peak.allocated": peak,
        b"total.allocated": used,
        b"startup.allocated": memory.used_memory_startup,
        b"replication.backlog": 0,
        b"clients.slaves": 0,
        b"clients.normal": clients,
        b"cluster.links": 0,
        b"aof.buffer": 0,
        b"lua.caches": 0,
        b"functions.caches": 0,
        **databases,
        b"overhead.total": overhead,
        b"keys.count": count,
        b"keys.bytes-per-key": max(used - memory.used_memory_startup, 0) // count if count else 0,
        b"dataset.bytes": data,
        b"dataset.percentage": 100.0 * data / max(used - memory.used_memory_startup, data, 1),
        b"peak.percentage": 100.0 * used / max(peak, 1),
        b"allocator.allocated": used,
        b"allocator.active": used + idle,
        b"allocator.resident": rss,
        b"allocator-fragmentation.ratio": (used + idle) / max(used, 1),
        b"allocator-fragmentation.bytes": idle,
        b"allocator-rss.ratio": rss / max(used + idle, 1),
        b"allocator-rss.bytes": rss - used - idle,
        b"rss-overhead.ratio": 1.0,
        b"rss-overhead.bytes": 0,
        b"fragmentation": rss / max(used, 1),
        b"fragmentation.bytes": rss - used,
    }


@command("MEMORY DOCTOR", arity=2, flags=Flag(0), group="server")
def memory_doctor(session: Session, argv: Argv) -> Reply:
    """Answer in words what is wrong with the server's memory, if anything."""
    memory = session.engine.memory
    memory.measure()
    if memory.used_memory - memory.used_memory_startup < LITTLE:
        return Verbatim("There is too little data in this server to say anything about its memory.\n")
    found = []
    if memory.limit and memory.used_memory > 0.9 * memory.limit:
        found.append(
            f"Nearly full: {memory.used_memory} bytes are in use and maxmemory is {memory.limit}. Above it commands "
            "that may need memory are refused. Delete data, or raise maxmemory."
        )
    if memory.used_memory_peak > 1.5 * memory.used_memory:
        found.append(
            f"A high peak: at one time {memory.used_memory_peak} bytes were in use, now {memory.used_memory} are. The "
            "difference may still count as resident; it is used again when data grows."
        )
    if memory.used_memory_rss > 1.6 * memory.used_memory:
        found.append(
            f"Fragmentation: {memory.used_memory_rss} bytes are resident for {memory.used_memory} in use. MEMORY PURGE "
            "gives back what it can; a restart gives back the rest."
        )
    if not found:
        return Verbatim("No memory problem was found in this server.\n")
    return Verbatim("Found in this server's memory:\n\n" + "".join(f" * {line}\n" for line in found))


@command("MEMORY PURGE", arity=2, flags=Flag(0), group="server", cost="O(N) with N idle pieces of the heap")
def memory_purge(session: Session, argv: Argv) -> Reply:
    """Return memory that is allocated but unused to the operating system."""
    session.engine.memory.purge()
    return OK


@command("MEMORY MALLOC-STATS", arity=2, flags=Flag(0), group="server")
def memory_malloc_stats(session: Session, argv: Argv) -> Reply:
    """Answer the statistics of the allocators, as text."""
    return Verbatim("".join(f"{name}:{value}\n" for name, value in session.engine.memory.allocators().items()))
