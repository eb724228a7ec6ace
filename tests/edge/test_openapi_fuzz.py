"""A short run of schemathesis over both OpenAPI documents, always with the same requests: campaign `openapi-fuzz`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openapi_fuzz import REGISTRY_FILTERS, Fuzzed, fuzz, services
from registry_process import RegistryProcess
from rest_process import RestClient

pytestmark = pytest.mark.broker

SHORT = ("--phases", "fuzzing", "--max-examples", "1", "--generation-deterministic", "--continue-on-failure")


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[RegistryProcess, RestClient]]:
    with services() as found:
        yield found


def check(result: Fuzzed) -> None:
    assert result.has_passed, result.output
    assert result.cases > 50, result.output


def test_registry_answers_as_its_document_says(running: tuple[RegistryProcess, RestClient]) -> None:
    registry, _ = running
    check(fuzz(registry.url, "openapi_registry.toml", [*SHORT, *REGISTRY_FILTERS], is_repeatable=True))
    assert "Traceback" not in registry.stderr()


def test_rest_proxy_answers_as_its_document_says(running: tuple[RegistryProcess, RestClient]) -> None:
    _, rest = running
    check(fuzz(rest.url, "openapi_rest.toml", SHORT, rest.cluster_id, is_repeatable=True))
