"""Metrics of topics with `schema.validation`."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.broker.component import Component
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.validation.schema_lookup import SchemaLookups
from ottla.broker.validation.schema_validation import SchemaValidation
from ottla.env.metrics import Page, label_text
from ottla.log.opening import InlineBudget


class SchemaMetrics(Component):
    """Counts records and requests to the registry."""

    def __init__(
        self, *, metadata: ClusterMetadata, schemas: SchemaValidation, lookups: SchemaLookups, inline: InlineBudget
    ) -> None:
        """``inline`` counts the valid records of batches that were opened on the event loop."""
        self._metadata = metadata
        self._schemas = schemas
        self._lookups = lookups
        self._inline = inline

    def metrics(self, page: Page) -> Iterator[None]:
        if not self._metadata.settings.schema_registry_url:
            return
        records = self._schemas.records
        for outcome, count in {**records, "valid": records["valid"] + self._inline.valid_records}.items():
            labels = label_text(outcome=outcome)
            page.counter("ottla_schema_validation_records", "Records of topics with validation.", count, labels)
        for result, count in self._lookups.results.items():
            page.counter("ottla_schema_lookups", "Requests to the schema registry.", count, label_text(result=result))
        yield
