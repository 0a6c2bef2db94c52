"""How much input and output a connection collects before it is handled.

Both inner loops and the connection use these numbers: the compiled loop reads them from here when it is imported, so
that no number is written twice.
"""

from __future__ import annotations

MUCH_INPUT = 1 << 16
"""Bytes of input after which the reader is asked how many of them it still holds."""
WORTH_COPYING = 1 << 16
"""Bytes of replies that are joined to one block; above that, copying takes longer than passing on many."""
RELIEF = 1 << 18
"""Bytes of replies after which they are sent before anything more runs, so that a slow reader is noticed in time."""
