"""One ZooKeeper server for all tests of the metadata store in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from zookeeper_fixtures import running_zookeeper


@pytest.fixture(scope="session")
def zookeeper_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as address:
        yield address
