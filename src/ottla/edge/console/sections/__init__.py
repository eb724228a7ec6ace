"""The sections of the console, in the order of the navigation. A new page is a section here; see `pages.py`."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.edge.console.pages import Section
from ottla.edge.console.sections.access import Access
from ottla.edge.console.sections.brokers import Brokers
from ottla.edge.console.sections.changes import Changes
from ottla.edge.console.sections.groups import Groups
from ottla.edge.console.sections.pipelines import Pipelines
from ottla.edge.console.sections.schemas import Schemas
from ottla.edge.console.sections.topics import Topics
from ottla.edge.console.sections.transactions import TransactionsSection
from ottla.edge.console.sections.weather import Weather


def all_sections() -> Sequence[Section]:
    sections: list[Section] = [Weather(), Brokers(), Topics(), Groups(), TransactionsSection(), Schemas(), Pipelines()]
    return [*sections, Access(), Changes()]
