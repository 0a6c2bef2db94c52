"""Compiled twins: a `_name.pyx` beside `name.py` has some of its functions once more, in C.

Both pass the same tests. The compiled ones are used where there was a C compiler when the package was installed, unless
PENSTOCK_PURE is set.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any


def use_compiled(names: dict[str, Any], twin: str, *functions: str) -> bool:
    """Replace functions, or a class, among the names of a module by those of its twin; whether there is one.

    >>> use_compiled({}, "penstock._nothing", "function")
    False
    """
    if os.environ.get("PENSTOCK_PURE"):
        return False
    try:
        compiled = import_module(twin)
    except ImportError:
        return False
    names.update({function: getattr(compiled, function) for function in functions})
    return True
