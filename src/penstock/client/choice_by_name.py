"""Choices that a user may also write as text."""

from __future__ import annotations

import enum
from typing import TypeVar

C = TypeVar("C", bound=enum.Enum)


def chosen(kind: type[C], value: C | str, refusal: str) -> C:
    """A member by itself or by its name, in any case, with dashes or underscores; else ValueError: refusal, then all
    names.
    """
    if isinstance(value, kind):
        return value
    try:
        return kind(str(value).lower().replace("_", "-"))
    except ValueError:
        raise ValueError(f"{refusal} {', '.join(choice.value for choice in kind)}") from None
