"""The limit of work for one schema."""

from __future__ import annotations

import pytest

from ottla.schemas.schema import Budget, SchemaTooComplex


def test_budget_raises_when_its_steps_are_spent() -> None:
    budget = Budget(10)
    budget.spend(9)
    budget.spend()
    with pytest.raises(SchemaTooComplex, match="more than 10 steps"):
        budget.spend()
