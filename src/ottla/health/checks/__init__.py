"""The checks, by subject. Each is a pure function of a picture of the cluster; `CHECKS` is the table of all."""

from __future__ import annotations

from ottla.health.checks import brokers, disks, groups, partitions, security, topics, transactions
from ottla.health.checks.definition import Check

__all__ = ["CHECKS", "Check"]

#: within a severity, findings are in this order
CHECKS: tuple[Check, ...] = tuple(
    check for module in (brokers, partitions, disks, groups, transactions, topics, security) for check in module.CHECKS
)
