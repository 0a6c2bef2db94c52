"""LATENCY: events that made clients wait. Nothing is recorded while `latency-monitor-threshold` is 0."""

from __future__ import annotations

from penstock.engine.declarations import Argv, Flag, Reply, command
from penstock.engine.session import Session
from penstock.protocol.resp import Verbatim

OPERATOR = Flag.ADMIN | Flag.NOSCRIPT | Flag.LOADING | Flag.STALE


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


@command("LATENCY LATEST", arity=2, flags=OPERATOR, group="server", cost="O(N) with N kinds of events")
def latency_latest(session: Session, argv: Argv) -> Reply:
    """Answer for each kind of event: its name, when it was last seen, how many milliseconds it took, the longest ever.

    Kinds are command, fast-command (those Redis calls fast) and fork (for a snapshot or a rewrite of the log).
    """
    return [[name, *event.samples[-1], event.worst] for name, event in session.engine.latency.events.items()]


@command("LATENCY HISTORY", arity=3, flags=OPERATOR, group="server", syntax="event", cost="O(1), 160 samples at most")
def latency_history(session: Session, argv: Argv) -> Reply:
    """Answer the latest samples of a kind of event: the Unix time, and the milliseconds of the worst in that second."""
    event = session.engine.latency.events.get(_name(argv[2]))
    return [list(sample) for sample in event.samples] if event is not None else []


@command(
    "LATENCY RESET", arity=-2, flags=OPERATOR, group="server", syntax="[event [event ...]]", cost="O(N) with N events"
)
def latency_reset(session: Session, argv: Argv) -> Reply:
    """Forget the samples of these kinds of events, or of all, and answer how many kinds had any."""
    events = session.engine.latency.events
    names = [_name(raw) for raw in argv[2:]] or list(events)
    return sum(events.pop(name, None) is not None for name in names)


@command("LATENCY HISTOGRAM", arity=-2, flags=OPERATOR, group="server", syntax="[command [command ...]]")
def latency_histogram(session: Session, argv: Argv) -> Reply:
    """Answer nothing, as Redis does with `latency-tracking no`: INFO commandstats has the average of each command."""
    return {}


@command("LATENCY DOCTOR", arity=2, flags=OPERATOR, group="server", cost="O(N) with N kinds of events")
def latency_doctor(session: Session, argv: Argv) -> Reply:
    """Describe in words what was recorded."""
    latency = session.engine.latency
    if not latency.events and not session.engine.config.latency_monitor_threshold:
        return Verbatim(
            "Nothing is recorded. CONFIG SET latency-monitor-threshold to the milliseconds that are too long.\n"
        )
    lines = [
        f"{name}: {len(event.samples)} samples, the last of {event.samples[-1].milliseconds} ms, the worst of "
        f"{event.worst} ms.\n"
        for name, event in latency.events.items()
    ]
    return Verbatim("".join(lines) or "Nothing took long enough to be recorded.\n")
