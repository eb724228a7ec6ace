"""YAML that is not read, and why."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ottla.pipeline.document import SIZE_BYTES_MAX, read_document
from ottla.pipeline.problems import BadDeclaration, Problems


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "p.yaml:1:1: the file is empty; begin with 'ottla pipeline init'"),
        (b"# nothing", "p.yaml:1:1: the file is empty; begin with 'ottla pipeline init'"),
        (b"a: &x 1\nb: *x", "p.yaml:1:4: anchors (&) and aliases (*) are not read; write the value out"),
        (b"a: 1\n---\nb: 2", "p.yaml:2:1: a second document begins here; keep one pipeline per file"),
        (b"a: [" * 30, "lists and mappings are nested more than 20 deep; write it flatter"),
        (b"a: \xff", "p.yaml:1:1: the file is not UTF-8; save it as UTF-8"),
        (b"a: b: c", "p.yaml:1:5: this is not YAML: mapping values are not allowed here; put text"),
        (b"a:\n\tb: c", "p.yaml:2:1: this is not YAML: found character '\\t' that cannot start any token; indent"),
        (b"a: 'x", "this is not YAML: found unexpected end of stream; check quotes"),
        (b"a: \x00", "this is not YAML"),
    ],
)
def test_what_is_not_read_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(BadDeclaration) as refused:
        read_document(data, "p.yaml", Problems())
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            b"a: !!python/object/apply:os.system [x]",
            "the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not read",
        ),
        (b"<<: {a: 1}", "merge keys (<<) are not read"),
        (b"? [a]\n: 1", "a key must be text"),
        (b"a: 1\na: 2", "'a' is written twice, first in line 1"),
    ],
)
def test_what_is_read_around_is_told(data: bytes, told: str) -> None:
    problems = Problems()
    read_document(data, "p.yaml", problems)
    assert [told in str(problem) for problem in problems] == [True]


def test_a_bomb_of_aliases_is_cheap() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    started = time.perf_counter()
    with pytest.raises(BadDeclaration):
        read_document("\n".join(lines).encode(), "p.yaml", Problems())
    # Thirty thousand million elements take longer than this on any machine.
    assert time.perf_counter() - started < 60


def test_a_huge_file_is_not_parsed() -> None:
    with pytest.raises(BadDeclaration, match="split it"):
        read_document(b"a" * (SIZE_BYTES_MAX + 1), "p.yaml", Problems())


def test_a_list_at_the_top_is_told(problems: Callable[..., list[str]]) -> None:
    assert "the pipeline is a list; write a mapping with the keys name, storage, sources, flows" in problems("- a\n")[0]
