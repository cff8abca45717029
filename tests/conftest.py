"""Fixtures that every suite may ask for by name."""

import pytest

from tests.embedded import running_fleet
from tests.postgresql import postgresql, postgresql_server
from tests.services import valkey

__all__ = ["emulated_fleet", "postgresql", "postgresql_server", "valkey"]


@pytest.fixture(scope="session")
def emulated_fleet(tmp_path_factory):
    """One whole fleet on emulated nodes for all tests that only use it; see `tests.embedded.Fleet`."""
    with running_fleet(tmp_path_factory.mktemp("fleet") / "data") as fleet:
        yield fleet
