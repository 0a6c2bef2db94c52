"""Commands about replicas: REPLICAOF, ROLE, WAIT, WAITAOF, FAILOVER; PSYNC and REPLCONF between servers."""

from __future__ import annotations

from penstock.engine.arguments import to_integer
from penstock.engine.declarations import Argv, Flag, Reply, command
from penstock.engine.interfaces import Replication
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, syntax_error
from penstock.protocol.resp import NO_REPLY, OK, Status

_SETTINGS = (b"listening-port", b"ip-address", b"capa", b"node", b"log", b"epoch", b"run")
_SERVERS = Flag.ADMIN | Flag.NOSCRIPT | Flag.STALE
_ORDER = _SERVERS | Flag.NO_DATA  # an operator may have to give it while all other clients wait for replicas


def _replication(session: Session) -> Replication:
    if session.engine.replication is None:
        raise ReplyError("this server has no replicas")
    return session.engine.replication


def _refuse_to_replica(session: Session) -> None:
    if session.link is not None:
        raise ReplyError("Command is not valid when client is a replica.")


def _to_port(raw: bytes) -> int:
    port = to_integer(raw, lambda: ReplyError("Invalid master port"))
    if not 0 < port < 65536:
        raise ReplyError("Invalid master port")
    return port


@command("REPLICAOF", arity=3, flags=_ORDER, group="server", syntax="host port | NO ONE")
def replicaof(session: Session, argv: Argv) -> Reply:
    """Become a replica of another server, or of none: then this server takes writes again.

    A replica keeps a log, and the other server too (appendonly yes). What is here is replaced by a copy, unless it is
    an earlier state of the other server: then only the rest comes.
    """
    replication = _replication(session)
    _refuse_to_replica(session)
    if [word.upper() for word in argv[1:]] == [b"NO", b"ONE"]:
        replication.lead()
        return OK
    host = argv[1].decode("utf-8", "surrogateescape")
    if not host or any(character.isspace() for character in host):
        raise ReplyError("Invalid master host")
    is_new = replication.follow(host, _to_port(argv[2]))
    return OK if is_new else Status(b"OK Already connected to specified master")


@command("SLAVEOF", arity=3, flags=_ORDER, group="server", syntax="host port | NO ONE")
def slaveof(session: Session, argv: Argv) -> Reply:
    """The older name of REPLICAOF."""
    return replicaof(session, argv)


@command(
    "ROLE",
    arity=1,
    flags=Flag.NOSCRIPT | Flag.LOADING | Flag.STALE | Flag.FAST,
    group="server",
    categories=["admin", "dangerous"],
)
def role(session: Session, argv: Argv) -> Reply:
    """Answer whether this server leads or follows, how far its log is, and who is at the other end."""
    return _replication(session).role()


@command(
    "FAILOVER",
    arity=-1,
    flags=_ORDER,
    group="server",
    syntax="[TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]",
)
def failover(session: Session, argv: Argv) -> Reply:
    """Hand over to a replica: hold writes back until it has everything, have it lead, and follow it."""
    replication = _replication(session)
    _refuse_to_replica(session)
    if [word.upper() for word in argv[1:]] == [b"ABORT"]:
        replication.abort_failover()
        return OK
    target: tuple[str, int] | None = None
    timeout, force = 0, False
    words = argv[1:]
    while words:
        match [words[0].upper(), *words[1:]]:
            case [b"FORCE", *words] if not force:
                force = True
            case [b"TIMEOUT", milliseconds, *words] if not timeout:
                timeout = to_integer(milliseconds)
                if timeout <= 0:
                    raise ReplyError("FAILOVER timeout must be greater than 0")
            case [b"TO", host, port, *words] if target is None:
                target = host.decode("utf-8", "surrogateescape"), to_integer(port)
            case _:
                raise syntax_error()
    replication.fail_over(target, timeout, force)
    return OK


@command("WAIT", arity=3, flags=Flag.NOSCRIPT, group="connection", syntax="numreplicas timeout")
def wait(session: Session, argv: Argv) -> Reply:
    """Wait until so many replicas have in their logs what was written until now, or for so many milliseconds.

    The answer is how many have it.
    """
    _refuse_as_replica(session, argv)
    replicas, timeout = to_integer(argv[1]), _to_timeout(argv)
    return _replication(session).wait(session, local=False, replicas=replicas, timeout=timeout, synced=False)


@command("WAITAOF", arity=4, flags=Flag.NOSCRIPT, group="connection", syntax="numlocal numreplicas timeout")
def waitaof(session: Session, argv: Argv) -> Reply:
    """Wait until what was written until now is safe from a power cut: here (numlocal 1) and on so many replicas.

    The answer is two numbers: 1 if it is safe here, and how many replicas have it safe.
    """
    local, replicas, timeout = to_integer(argv[1]), to_integer(argv[2]), _to_timeout(argv)
    if local not in (0, 1):
        raise ReplyError("value is out of range, must be between 0 and 1")
    _refuse_as_replica(session, argv)
    if local and session.engine.commit is None:
        raise ReplyError("WAITAOF cannot be used when numlocal is set but appendonly is disabled.")
    return _replication(session).wait(session, local=bool(local), replicas=replicas, timeout=timeout, synced=True)


def _refuse_as_replica(session: Session, argv: Argv) -> None:
    if session.engine.following:
        raise ReplyError(
            f"{argv[0].decode().upper()} cannot be used with replica instances. Please also note that since Redis 4.0 "
            "if a replica is configured to be writable (which is not the default) writes to replicas are just local "
            "and are not propagated."
        )


def _to_timeout(argv: Argv) -> int:
    timeout = to_integer(argv[-1], lambda: ReplyError("timeout is not an integer or out of range"))
    if timeout < 0:
        raise ReplyError("timeout is negative")
    return timeout


@command(
    "PSYNC",
    arity=-3,
    flags=Flag.ADMIN | Flag.NOSCRIPT | Flag.NO_MULTI | Flag.NO_DATA,
    group="server",
    syntax="feed offset [FAILOVER | FORCE]",
)
def psync(session: Session, argv: Argv) -> Reply:
    """Ask for the log from an offset on: for replicas, which are Penstock servers and said `REPLCONF capa penstock`.

    CONTINUE and the lineage of the log are answered if it follows, and COPY if everything must be copied first.
    FAILOVER: the one that asks has led until now, and hands over to a replica that has everything; FORCE: although it
    lacks something.
    """
    offset = to_integer(argv[2])
    feed = argv[1].decode("utf-8", "replace")
    order = argv[3].upper() if len(argv) > 3 else b""
    if len(argv) > 4 or order not in (b"", b"FAILOVER", b"FORCE"):
        raise syntax_error()
    return _replication(session).start_feed(session, "" if feed == "?" else feed, offset, order.decode())


@command(
    "REPLCONF",
    arity=-1,
    flags=_SERVERS | Flag.LOADING | Flag.ALLOW_BUSY | Flag.NO_MULTI | Flag.NO_DATA,
    group="server",
    syntax="[option value ...] | ACK offset [FACK offset [EPOCH epoch]] | FILES | SIZE name | READ name start count",
)
def replconf(session: Session, argv: Argv) -> Reply:
    """What servers say to each other: who a replica is, how far it is, and the files of a full copy.

    A connection that has said `REPLCONF capa penstock` may only run AUTH, PING, PSYNC, QUIT and REPLCONF from then on:
    what it is answered does not wait for replicas (`replica-acks`).
    """
    replication = _replication(session)
    match [word.upper() for word in argv[1:2]]:
        case [b"ACK"] if len(argv) in (3, 5, 7):
            epoch = to_integer(argv[6]) if len(argv) == 7 else None
            replication.acknowledged(session, to_integer(argv[2]), to_integer(argv[min(len(argv) - 1, 4)]), epoch)
            return NO_REPLY
        case [b"FILES"] if len(argv) == 2:
            return replication.files(session)
        case [b"SIZE"] if len(argv) == 3:
            return replication.file_size(session, argv[2].decode("utf-8", "replace"))
        case [b"READ"] if len(argv) == 5:
            name = argv[2].decode("utf-8", "replace")
            return replication.read_file(session, name, to_integer(argv[3]), to_integer(argv[4]))
        case [b"GETACK"]:
            return Status(b"OK")
    if len(argv) % 2 == 0:
        raise syntax_error()
    settings = [(name.lower(), value) for name, value in zip(argv[1::2], argv[2::2], strict=True)]
    unknown = [name for name, _ in settings if name not in _SETTINGS]
    if unknown:
        raise ReplyError(f"Unrecognized REPLCONF option: {unknown[0].decode('utf-8', 'replace')}")
    replication.configure(session, settings)
    return OK
