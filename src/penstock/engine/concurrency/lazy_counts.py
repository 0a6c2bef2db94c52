"""The counters of LAZY, for LAZY STATUS and INFO."""

from __future__ import annotations


class Counts:
    """Owned by the loop thread."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """CONFIG RESETSTAT."""
        self.enqueued = 0
        self.ran_actively = 0  # because a client needed it
        self.ran_passively = 0  # in an idle moment, or of old age
        self.ran_inline = 0  # at once: the queue was full, or a client waited for it
        self.discarded = 0  # by FLUSHALL or FLUSHDB
        self.failed = 0  # with an error, for which there was no client
        self.last_error = ""

    def fields(self) -> dict[str, int | str]:
        return dict(vars(self))
