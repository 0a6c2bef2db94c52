"""Makes every command take the path of a long one, however little it has to do: for tests that compare the two paths.

`python -m tests.support.everything_long` is `penstock` with every command long.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock import commands
from penstock.cli.main import app
from penstock.engine.concurrency import long_work


def make_everything_long(patch: pytest.MonkeyPatch) -> None:
    """What has any elements at all goes through `Session.aside` from now on; where it runs is decided there."""
    commands.load()
    for name, module in list(sys.modules.items()):
        if name.startswith("penstock.") and "LONG" in vars(module):
            patch.setattr(module, "LONG", 0)
    assert long_work.LONG == 0


@contextmanager
def everything_long() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        make_everything_long(patch)
        yield


if __name__ == "__main__":
    with everything_long():
        app()
