"""Small pipelines to break, and a way to read them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping

import pytest
from small_pipeline import HEAD

from ottla.pipeline.declaration import Declaration
from ottla.pipeline.load import parse
from ottla.pipeline.problems import BadDeclaration


@pytest.fixture
def read() -> Callable[..., Declaration]:
    """Read a whole file, given as text."""

    def read_text(text: str, files: Mapping[str, bytes] | None = None) -> Declaration:
        def open_file(name: str) -> bytes:
            if name not in (files or {}):
                raise FileNotFoundError(2, "No such file or directory", name)
            return (files or {})[name]

        return parse(textwrap.dedent(text).encode(), "p.yaml", open_file)

    return read_text


@pytest.fixture
def problems(read: Callable[..., Declaration]) -> Callable[..., list[str]]:
    """What is wrong with a file, line by line."""

    def problems_of(text: str, files: Mapping[str, bytes] | None = None) -> list[str]:
        try:
            read(text, files)
        except BadDeclaration as bad:
            return [str(problem) for problem in bad.problems]
        return []

    return problems_of


@pytest.fixture
def with_flows(problems: Callable[..., list[str]]) -> Callable[[str], list[str]]:
    """What is wrong with these flows, which may read the source `orders` and the staging flow `staged`."""

    def problems_of(flows: str) -> list[str]:
        return problems(HEAD + textwrap.indent(textwrap.dedent(flows), "  "))

    return problems_of
