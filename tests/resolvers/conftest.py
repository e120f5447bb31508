"""A published history to choose from."""

import pytest

from tests.published import Published


@pytest.fixture
def published():
    return Published()
