"""Hypothesis strategies of commands, for comparison machines."""

from __future__ import annotations

from hypothesis import strategies as st


def words(*parts: bytes | st.SearchStrategy[object]) -> st.SearchStrategy[list[bytes]]:
    """A command from fixed words, strategies of a word and strategies of several."""
    strategies = [part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts]
    return st.tuples(*strategies).map(
        lambda found: [word for part in found for word in (part if isinstance(part, list) else [part])]
    )


def several(strategy: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    return st.lists(strategy, min_size=1, max_size=3)
