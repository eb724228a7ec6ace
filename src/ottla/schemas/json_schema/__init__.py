"""json_schema: JSON Schema, drafts 4, 6, 7, 2019-09 and 2020-12. Knows: schemas.schema, model.

The text is parsed (`text`), all schemas in it are checked and their references resolved (`documents`, `validity`,
`drafts`, `patterns`), and each schema becomes a node (`nodes`, with `classic` and `modern` for the two generations of
drafts). A comparison walks pairs of nodes (`comparison`, `compare_*`). Verdicts and kinds of differences are those of
Confluent's registry; docs/reference/schema-compatibility.md lists where they are not, and why. Never fetches anything.
"""

from __future__ import annotations

from ottla.schemas.json_schema.json_schema import JsonSchema
from ottla.schemas.schema import NO_REFERENCES, Resolved

__all__ = ["JsonSchema", "parse"]


def parse(text: str, resolved: Resolved = NO_REFERENCES) -> JsonSchema:
    """Return the schema of a text. Raise InvalidSchema if it is not a valid schema of its draft."""
    return JsonSchema(text, resolved)
