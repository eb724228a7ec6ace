"""The limit of work for one schema."""

from __future__ import annotations

import json

import pytest

from ottla.schemas.formats import parse
from ottla.schemas.schema import AllowanceSpent, Budget, Reference, Resolved, SchemaTooComplex, steps_allowed


def test_budget_raises_when_its_steps_are_spent() -> None:
    budget = Budget(10)
    budget.spend(9)
    budget.spend()
    with pytest.raises(SchemaTooComplex, match="more than 10 steps"):
        budget.spend()


def test_operations_of_a_block_share_its_steps() -> None:
    with steps_allowed(10):
        Budget().spend(6)
        second = Budget()
        second.spend(4)
        with pytest.raises(SchemaTooComplex):
            second.spend()
        with pytest.raises(SchemaTooComplex):
            Budget().spend()
    Budget().spend(11)


def test_operation_in_a_block_keeps_its_own_limit() -> None:
    with steps_allowed(1000), pytest.raises(SchemaTooComplex, match="more than 10 steps"):
        Budget(10).spend(11)


def test_block_can_raise_another_error_so_that_the_work_is_done_elsewhere() -> None:
    with steps_allowed(10, AllowanceSpent), pytest.raises(AllowanceSpent):
        Budget().spend(11)


def test_size_of_references_counts_as_steps() -> None:
    resolved = Resolved((Reference("a", "a", 1),), {"a": json.dumps({"title": "x" * 100_000})})
    with steps_allowed(1000, AllowanceSpent), pytest.raises(AllowanceSpent):
        parse("JSON", "{}", resolved)
