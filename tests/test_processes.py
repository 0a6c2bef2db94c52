"""The parts in which `pytest -n 4` gives out the tests; see support/processes.py."""

from pathlib import Path

import pytest
from tests.support.processes import FIRST

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("part", FIRST)
def test_what_begins_first_is_there(part: str) -> None:
    file, _, test = part.partition("::")
    assert (ROOT / file).exists()
    assert not test or f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8")
