"""`consume(url, body, how, **terms)` runs a consumer: with threads, and then with tasks."""

from __future__ import annotations

import pytest
from tests.support.client.consuming import CONSUMERS, Consume


@pytest.fixture(params=list(CONSUMERS))
def consume(request: pytest.FixtureRequest) -> Consume:
    return CONSUMERS[request.param]
