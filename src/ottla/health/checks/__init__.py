"""The checks, by subject. Each is a pure function of a picture of the cluster; `CHECKS` is the table of all."""

from __future__ import annotations

from ottla.health.checks import partitions
from ottla.health.checks.definition import Check

__all__ = ["CHECKS", "Check"]

#: within a severity, findings are in this order
CHECKS: tuple[Check, ...] = (*partitions.CHECKS,)
