"""Limits of what one client may cost the others: how many connect, from where, how long idle, how far behind in
reading.

A client that sends commands and reads slowly is slowed down by its connection. One that does not read at all is still
read from, because it may read after it has sent everything; it is closed when its commands and replies that wait pass
client-query-buffer-limit together. A subscriber or a monitor gets data without asking and cannot be slowed down: it is
closed when what waits for it passes client-output-buffer-limit.

The hard limit also bounds what is sent at once, however fast the client reads: Redis holds a whole reply before it
sends any of it, and operators set the limit so that such replies end. Up to 64 KiB (WORTH_COPYING) nothing is checked.
"""

from __future__ import annotations

import ipaddress
import logging
import sys
import time
from typing import TYPE_CHECKING

from penstock.engine.access.users import User
from penstock.server.descriptors import clients_that_fit, fit_at_start

if TYPE_CHECKING:
    from penstock.server.app import App
    from penstock.server.connection import Connection
    from penstock.server.replies import Replies

logger = logging.getLogger("penstock.server")

TOO_MANY = b"-ERR max number of clients reached\r\n"
DENIED = (
    b"-DENIED Penstock is running in protected mode: the default user has no password, so only clients on the same "
    b"machine are accepted. Give it one (requirepass), or, if no other machine can reach this server, turn the mode "
    b"off: "
    b"CONFIG SET protected-mode no from this machine, or the option --protected-mode no.\r\n"
)
SWEEP = 1.0
"""Seconds between two looks at all clients."""
JUMP = 2000
"""Milliseconds of difference from which the clock was set, or the machine was suspended."""


class Limits:
    """The limits of one App. Owned by the loop thread."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._next_sweep = 0.0
        self._times = (app.engine.clock.now, time.monotonic())  # at the last sweep
        self._behind: dict[Replies, float] = {}  # over the soft limit, since when
        self.unread: dict[Connection, int] = {}  # their sockets are not read; what their transports held when looked at
        self._fitting = 0  # the largest maxclients that was found to leave descriptors for our own files
        app.config.on_change("maxclients", self._check_descriptors)

    def fit_maxclients(self) -> None:
        """At start: lower maxclients if there are not enough descriptors.

        TooFewDescriptors if there are none at all.
        """
        config = self._app.config
        self._fitting = fit_at_start(config.maxclients)
        config.replace("maxclients", self._fitting)

    def _check_descriptors(self, wanted: int) -> None:
        """CONFIG SET maxclients: refuse what there are not enough descriptors for."""
        if wanted <= self._fitting:
            return
        fitting = clients_that_fit(wanted, len(self._app.connections) + len(self._app.acceptor.arriving))
        if fitting < wanted:
            raise ValueError(
                "The operating system is not able to handle the specified number of clients, "
                f"try with {max(fitting, self._fitting)}"
            )
        self._fitting = wanted

    def refusal(self, host: str) -> bytes | None:
        """Why one more client is not accepted, as the bytes it gets; None if it is.

        `host` is empty for a Unix socket.
        """
        app = self._app
        if len(app.connections) + len(app.acceptor.arriving) >= app.config.maxclients:
            return TOO_MANY
        if app.config.protected_mode and is_exposed(app.engine.acl.default, host):
            return DENIED
        return None

    def check_output(self, connection: Replies) -> None:
        """Close a client that is too far behind: over the hard limit, or over the soft one for too long."""
        hard, soft, seconds = self._allowed(connection)
        _, unsent = connection.buffered()
        now = time.monotonic()
        if soft and unsent > soft:
            since = self._behind.setdefault(connection, now)
        else:
            self._behind.pop(connection, None)
            since = now
        if (hard and unsent > hard) or now - since > seconds:
            self._close_behind(connection, unsent)

    def holds_too_much(self, connection: Connection) -> bool:
        """Whether commands and replies of a client that does not read pass the limit; the client is closed then."""
        waiting, unsent = connection.buffered()
        if waiting + unsent <= self._app.query_buffer_limit:
            return False
        session = connection.session
        logger.warning(
            "closing client %s (id %d): it does not read, and %d bytes of commands and %d of replies wait, "
            "more than client-query-buffer-limit",
            session.peer, session.id, waiting, unsent,
        )  # fmt: skip
        connection.close(after_reply=False)
        return True

    def too_long(self, connection: Replies, size: int) -> bool:
        """Whether a reply of so many bytes, or of more, passes the hard limit; the client is closed then."""
        hard = self._allowed(connection)[0]
        if not hard or size <= hard:
            return False
        self._close_behind(connection, size)
        return True

    def _allowed(self, connection: Replies) -> tuple[int, int, int]:
        """The hard limit, the soft one, and its seconds. A replica that copies everything has none: it asks for a piece
        at a time.
        """
        link = connection.session.link
        if link is not None and link.understands and not link.follows:
            return 0, 0, 0
        limits: tuple[int, int, int] = self._app.config.client_output_buffer_limit[_kind(connection)]
        return limits

    def _close_behind(self, connection: Replies, unsent: int) -> None:
        session = connection.session
        logger.warning(
            "closing client %s (id %d): %d bytes wait to be read, more than client-output-buffer-limit %s allows",
            session.peer, session.id, unsent, _kind(connection),
        )  # fmt: skip
        connection.close(after_reply=False)

    def forget(self, connection: Connection) -> None:
        self._behind.pop(connection, None)
        self.unread.pop(connection, None)

    def sweep(self) -> None:
        """Periodic: closes clients that are behind for too long, have vanished, or are idle for too long."""
        for connection in list(self._behind):
            self.check_output(connection)
        self._find_stuck()
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP
            self._close_vanished()
            self._follow_clock(self._app.engine.clock.now, now)
            if self._app.config.timeout:
                self._close_idle(self._app.engine.clock.now, self._app.config.timeout * 1000)

    def took_replies(self, connection: Connection) -> None:
        """A client whose socket is not read has read something: its transport may hold as much again, but it is not
        stuck.
        """
        if connection in self.unread:
            self.unread[connection] = sys.maxsize

    def _find_stuck(self) -> None:
        """Read on from clients whose sockets are not read and that took no reply since the last look."""
        for connection, before in list(self.unread.items()):
            self.unread[connection] = held = connection.transport.get_write_buffer_size()
            if held >= before and connection.is_stuck():
                connection.read_on()

    def _follow_clock(self, wall: int, now: float) -> None:
        """If the clock was set, correct the idle times of all clients. When it was set back, those that were active, or
        came, since then have a time of the new clock.
        """
        before, then = self._times
        self._times = (wall, now)
        jump = wall - before - round((now - then) * 1000)
        if abs(jump) > JUMP:
            for session in self._app.engine.sessions.values():
                if jump > 0 or session.created > wall:
                    session.created += jump
                if jump > 0 or session.last_active > wall:
                    session.last_active = min(session.last_active + jump, wall)

    def _close_vanished(self) -> None:
        """A socket that is not read does not tell that its peer closed it; the kernel knows."""
        for connection in list(self.unread):
            if connection.session.peer_has_left:
                connection.close(after_reply=False)

    def _close_idle(self, now: int, timeout: int) -> None:
        for connection in list(self._app.connections):
            session = connection.session
            waits = session.waiter is not None or session.subscribed or session.monitoring or session.is_replica
            if not waits and now - session.last_active > timeout:
                logger.info("closing idle client %s", session.peer)
                connection.close(after_reply=False)


def _kind(connection: Replies) -> str:
    session = connection.session
    if session.link is not None:
        return "replica"
    return "pubsub" if session.subscribed or session.monitoring else "normal"


def is_exposed(default: User, host: str) -> bool:
    """Whether protected mode must refuse: there is no password, and this client is not on this machine.

    `host` is empty for a Unix socket.
    """
    return default.needs_no_password and not is_local(host)


def is_local(host: str) -> bool:
    """Whether a client is on this machine: a loopback address, or a Unix socket, for which `host` is empty.

    >>> [is_local(host) for host in ("", "127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "fe80::1%eth0")]
    [True, True, True, True, False, False]
    """
    if not host or host.startswith("127."):
        return True
    address = ipaddress.ip_address(host.split("%")[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
