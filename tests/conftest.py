"""Fixtures that every suite may ask for by name."""

import pytest

from tests.embedded import running_fleet
from tests.postgresql import postgresql, postgresql_server
from tests.services import valkey

__all__ = ["emulated_fleet", "postgresql", "postgresql_server", "valkey"]


# A file of few tests that take minutes: begun first, it does not keep one core busy when all others are done.
LONGEST = "test_fleet_llama.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest file first; the others stay in their order."""
    items.sort(key=lambda item: item.path.name != LONGEST)


@pytest.fixture(scope="session")
def emulated_fleet(tmp_path_factory):
    """One whole fleet on emulated nodes for all tests that only use it; see `tests.embedded.Fleet`."""
    with running_fleet(tmp_path_factory.mktemp("fleet") / "data") as fleet:
        yield fleet
