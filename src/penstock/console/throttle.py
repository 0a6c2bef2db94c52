"""Wrong passwords make the next attempt wait: each more than three doubles the wait, up to a minute.

A right password forgives the wrong ones only if all were for the same user: otherwise an attacker with a user of its
own could guess the password of another without waiting.

By the address of the browser. Behind a proxy all browsers have one address, and wait together; that is the lesser
evil, since a header that says otherwise can be invented.
"""

from __future__ import annotations

from collections.abc import Callable

FREE = 3
LONGEST = 60.0
REMEMBERED = 1000
FORGET_AFTER = 900.0


class Throttle:
    """Counts failures of each address; `clock` is in seconds.

    >>> now = [0.0]
    >>> throttle = Throttle(lambda: now[0])
    >>> for _ in range(4):
    ...     throttle.failed("10.0.0.1", "ada")
    >>> throttle.succeeded("10.0.0.1", "bob")
    >>> throttle.wait("10.0.0.1"), throttle.wait("10.0.0.2")
    (2.0, 0.0)
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[int, float, str | None]] = {}
        """How many, when the last was, and the user if it was always the same."""

    def wait(self, address: str) -> float:
        """Seconds until this address may try again."""
        count, since, _ = self._failures.get(address, (0, 0.0, None))
        if count <= FREE:
            return 0.0
        return max(since + min(2.0 ** (count - FREE), LONGEST) - self._clock(), 0.0)

    def failed(self, address: str, user: str) -> None:
        now = self._clock()
        count, since, only = self._failures.pop(address, (0, now, user))
        if now - since > FORGET_AFTER:
            count, only = 0, user
        if len(self._failures) >= REMEMBERED:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = count + 1, now, user if only == user else None

    def succeeded(self, address: str, user: str) -> None:
        if address in self._failures and self._failures[address][2] == user:
            del self._failures[address]
