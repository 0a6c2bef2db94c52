"""What to say where an optional part is not installed.

The package is installed from its repository: `penstock` on PyPI is another project.
"""

from __future__ import annotations


def install(extra: str) -> str:
    """
    >>> install("spark")
    "`pip install '.[spark]'` in a clone of Penstock's repository brings it"
    """
    return f"`pip install '.[{extra}]'` in a clone of Penstock's repository brings it"
