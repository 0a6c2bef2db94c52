"""Shorter ways for the commonest calls.

redis-py's `set` looks at a dozen options, which takes longer than sending the command; most calls have none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class Shortcuts:
    """Goes before redis-py's command classes. A type checker sees redis-py's methods, which have exact types."""

    if not TYPE_CHECKING:

        def set(self, name: Any, value: Any, *args: Any, **options: Any) -> Any:
            """SET; with options as redis-py has them."""
            if args or options:
                return super().set(name, value, *args, **options)
            return self.execute_command("SET", name, value)

        def get(self, name: Any) -> Any:
            """GET; without the list of keys that redis-py makes for its cache."""
            return self.execute_command("GET", name)
