"""Publish and subscribe.

Every name gets a confirmation, so SUBSCRIBE with three names answers three times. The handlers join the confirmations
into one `Raw` reply, which keeps them in order with other replies, also inside EXEC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.engine.declarations import Argv, Flag, Reply, command
from penstock.engine.globs import compile_glob
from penstock.engine.pubsub import Listeners, join, leave
from penstock.engine.session import Session
from penstock.protocol.errors import ReplyError, shown
from penstock.protocol.resp import Push, Raw, encode

_LISTEN = Flag.PUBSUB | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE | Flag.SUBSCRIBED
_TELL = Flag.PUBSUB | Flag.LOADING | Flag.STALE
Change = Callable[[Listeners, set[bytes], "Session", bytes], None]


def _listening(session: Session) -> int:
    return len(session.channels) + len(session.patterns)


def _listening_to_shards(session: Session) -> int:
    return len(session.shard_channels)


def _confirm(session: Session, kind: bytes, name: bytes | None, count: int) -> bytes:
    return encode(Push([kind, name, count]), session.protocol)


def _each(
    session: Session, change: Change, kind: bytes, table: Listeners, own: set[bytes], names: Iterable[bytes],
    count: Callable[[Session], int] = _listening,
) -> Reply:  # fmt: skip
    """Subscribe to or unsubscribe from every name in turn, and confirm each with the number of subscriptions."""
    confirmations = []
    for name in names:
        change(table, own, session, name)
        confirmations.append(_confirm(session, kind, name, count(session)))
    reply = Raw(b"".join(confirmations) or _confirm(session, kind, None, count(session)))
    if session.muted:  # CLIENT REPLY OFF silences replies, and these are pushes
        session.output.send(reply)
    return reply


@command("SUBSCRIBE", arity=-2, flags=_LISTEN, group="pubsub", syntax="channel [channel ...]", cost="O(1) a channel")
def subscribe(session: Session, argv: Argv) -> Reply:
    """Subscribe to channels."""
    table = session.engine.publications.channels
    return _each(session, join, b"subscribe", table, session.channels, argv[1:])


@command(
    "UNSUBSCRIBE", arity=-1, flags=_LISTEN, group="pubsub", syntax="[channel [channel ...]]", cost="O(1) a channel"
)
def unsubscribe(session: Session, argv: Argv) -> Reply:
    """Unsubscribe from channels, or from all of them."""
    table = session.engine.publications.channels
    return _each(session, leave, b"unsubscribe", table, session.channels, argv[1:] or list(session.channels))


@command("PSUBSCRIBE", arity=-2, flags=_LISTEN, group="pubsub", syntax="pattern [pattern ...]", cost="O(1) a pattern")
def psubscribe(session: Session, argv: Argv) -> Reply:
    """Subscribe to all channels whose name matches a pattern."""
    table = session.engine.publications.patterns
    return _each(session, join, b"psubscribe", table, session.patterns, argv[1:])


@command(
    "PUNSUBSCRIBE", arity=-1, flags=_LISTEN, group="pubsub", syntax="[pattern [pattern ...]]", cost="O(1) a pattern"
)
def punsubscribe(session: Session, argv: Argv) -> Reply:
    """Unsubscribe from patterns, or from all of them."""
    table = session.engine.publications.patterns
    return _each(session, leave, b"punsubscribe", table, session.patterns, argv[1:] or list(session.patterns))


@command(
    "SSUBSCRIBE",
    arity=-2,
    flags=_LISTEN,
    group="pubsub",
    syntax="shardchannel [shardchannel ...]",
    cost="O(1) a channel",
)
def ssubscribe(session: Session, argv: Argv) -> Reply:
    """Subscribe to shard channels, whose messages stay within the shard that owns the channel's slot."""
    if not session.may_block:  # inside MULTI, where Redis allows SUBSCRIBE and PSUBSCRIBE
        raise ReplyError("SSUBSCRIBE isn't allowed for a DENY BLOCKING client")
    table = session.engine.publications.shard_channels
    return _each(session, join, b"ssubscribe", table, session.shard_channels, argv[1:], _listening_to_shards)


@command(
    "SUNSUBSCRIBE",
    arity=-1,
    flags=_LISTEN,
    group="pubsub",
    syntax="[shardchannel [shardchannel ...]]",
    cost="O(1) a channel",
)
def sunsubscribe(session: Session, argv: Argv) -> Reply:
    """Unsubscribe from shard channels, or from all of them."""
    table, own = session.engine.publications.shard_channels, session.shard_channels
    return _each(session, leave, b"sunsubscribe", table, own, argv[1:] or list(own), _listening_to_shards)


@command(
    "PUBLISH",
    arity=3,
    flags=_TELL | Flag.FAST | Flag.MAY_REPLICATE,
    group="pubsub",
    syntax="channel message",
    cost="O(N+M) with N subscribers of the channel and M patterns",
)
def publish(session: Session, argv: Argv) -> Reply:
    """Send a message to all subscribers of the channel, and answer how many there were."""
    _tell_replicas(session, argv)
    return session.engine.publications.publish(argv[1], argv[2])


@command(
    "SPUBLISH",
    arity=3,
    flags=_TELL | Flag.FAST | Flag.MAY_REPLICATE,
    group="pubsub",
    syntax="shardchannel message",
    cost="O(N) with N subscribers of the channel",
)
def spublish(session: Session, argv: Argv) -> Reply:
    """Send a message to all subscribers of the shard channel, and answer how many there were."""
    _tell_replicas(session, argv)
    return session.engine.publications.publish_to_shard(argv[1], argv[2])


def _tell_replicas(session: Session, argv: Argv) -> None:
    if session.engine.replication is not None:
        session.engine.replication.publish([argv[0].upper(), *argv[1:]])


def _active(table: Listeners, argv: Argv) -> Reply:
    if len(argv) > 3:
        raise _unknown(argv)
    matches = compile_glob(argv[2]) if len(argv) == 3 else None
    return [name for name in table if matches is None or matches(name)]


def _unknown(argv: Argv) -> ReplyError:
    return ReplyError(f"unknown subcommand or wrong number of arguments for '{shown(argv[1])}'. Try PUBSUB HELP.")


def _counts(table: Listeners, names: Argv) -> Reply:
    return [item for name in names for item in (name, len(table.get(name, ())))]


@command(
    "PUBSUB CHANNELS", arity=-2, flags=_TELL, group="pubsub", syntax="[pattern]", cost="O(N) with N channels in use"
)
def pubsub_channels(session: Session, argv: Argv) -> Reply:
    """List the channels that have subscribers by name, not by pattern."""
    return _active(session.engine.publications.channels, argv)


@command("PUBSUB NUMSUB", arity=-2, flags=_TELL, group="pubsub", syntax="[channel ...]", cost="O(1) a channel")
def pubsub_numsub(session: Session, argv: Argv) -> Reply:
    """Answer how many subscribers each channel has by name."""
    return _counts(session.engine.publications.channels, argv[2:])


@command("PUBSUB NUMPAT", arity=2, flags=_TELL, group="pubsub")
def pubsub_numpat(session: Session, argv: Argv) -> Reply:
    """Answer how many different patterns have subscribers."""
    return len(session.engine.publications.patterns)


@command(
    "PUBSUB SHARDCHANNELS",
    arity=-2,
    flags=_TELL,
    group="pubsub",
    syntax="[pattern]",
    cost="O(N) with N shard channels in use",
)
def pubsub_shardchannels(session: Session, argv: Argv) -> Reply:
    """List the shard channels that have subscribers."""
    return _active(session.engine.publications.shard_channels, argv)


@command(
    "PUBSUB SHARDNUMSUB", arity=-2, flags=_TELL, group="pubsub", syntax="[shardchannel ...]", cost="O(1) a channel"
)
def pubsub_shardnumsub(session: Session, argv: Argv) -> Reply:
    """Answer how many subscribers each shard channel has."""
    return _counts(session.engine.publications.shard_channels, argv[2:])
