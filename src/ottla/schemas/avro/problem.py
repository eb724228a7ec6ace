"""The error inside of the Avro parser, which collects its place while it leaves the nested definitions."""

from __future__ import annotations

from ottla.schemas.schema import InvalidSchema


class Problem(Exception):
    """The schema is invalid at a place that is not known yet."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._message = message
        #: from the inside to the outside
        self._steps: list[str] = []

    def inside(self, *steps: str) -> None:
        """Add the next outer steps of the place, the outermost first."""
        self._steps += reversed(steps)

    def as_invalid_schema(self) -> InvalidSchema:
        place = "".join(f"/{step}" for step in reversed(self._steps))
        return InvalidSchema(f"{place}: {self._message}" if place else self._message)
