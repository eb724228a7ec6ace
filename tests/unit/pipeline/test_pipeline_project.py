"""Projects of several files: included files, SQL in files of its own, paths, and the top file of a directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from small_pipeline import HEAD

from ottla.pipeline import BadDeclaration, load
from ottla.pipeline.declaration import Declaration, SqlStep
from ottla.pipeline.document import Text, Written
from ottla.pipeline.graph import Graph
from ottla.pipeline.problems import Place

Write = Callable[[Mapping[str, str]], Path]

_TOP = HEAD.replace("storage: lake\n", "storage: lake\ninclude: flows/*.yaml\n")
_BIG = "flows:\n  big: {zone: trusted, from: staged, sql_file: big.sql}\n"
_QUERY = "SELECT *\nFROM staged\nWHERE amount > 10\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the files of a project, and return its directory."""

    def write_files(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "shop" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "shop"

    return write_files


def problems_of(project: Path) -> list[str]:
    with pytest.raises(BadDeclaration) as bad:
        load(str(project))
    return [str(problem).removeprefix(f"{project}/") for problem in bad.value.problems]


def sql_of(declaration: Declaration, flow: str) -> Text:
    step = declaration.flows[flow].steps[0]
    assert isinstance(step, SqlStep)
    return step.sql


def test_directory_is_loaded_from_its_top_file_and_the_files_that_it_includes(write: Write) -> None:
    files = {"pipeline.yaml": _TOP, "flows/b.yaml": _BIG, "flows/big.sql": _QUERY}
    files["flows/a.yaml"] = "flows:\n  small: {zone: trusted, from: staged}\n"
    shop = load(str(write(files)))
    assert list(shop.flows) == ["staged", "small", "big"]
    assert shop.file.endswith("shop/pipeline.yaml")
    assert sql_of(shop, "big").text == _QUERY
    assert shop == load(str(Path(shop.file)))


def test_directory_without_a_top_file_names_the_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        load(str(tmp_path))
    assert missing.value.filename == str(tmp_path / "pipeline.yaml")


def test_directory_can_have_a_top_file_in_python(write: Write) -> None:
    code = (
        "from ottla.pipeline import Pipeline\n"
        "shop = Pipeline('shop', storage='lake', include='flows/*.yaml')\n"
        "shop.source('orders', topic='orders', format='string')\n"
        "shop.flow('staged', zone='staging', from_='orders')\n"
        "shop.flow('large', zone='trusted', from_='staged', sql_file='large.sql')\n"
    )
    included = "flows:\n  small: {zone: trusted, from: staged}\n"
    shop = load(
        str(write({"pipeline.py": code, "flows/a.yaml": included, "large.sql": "SELECT * FROM staged WHERE value > 1"}))
    )
    assert list(shop.flows) == ["staged", "large", "small"]
    assert sql_of(shop, "large").text == "SELECT * FROM staged WHERE value > 1"


def test_name_that_two_files_declare_is_reported_with_both_files_and_lines(write: Write) -> None:
    project = write({"pipeline.yaml": _TOP, "flows/a.yaml": "flows:\n\n  staged: {zone: staging, from: orders}\n"})
    first = HEAD.count("\n") + 1
    assert problems_of(project) == [
        f"flows/a.yaml:3:3: flow 'staged' is declared twice, first in {project}/pipeline.yaml, line {first}; "
        "rename one or remove it"
    ]


def test_names_that_differ_in_case_only_are_reported_with_both_files(write: Write) -> None:
    project = write({"pipeline.yaml": _TOP, "flows/a.yaml": "flows:\n  Orders: {zone: staging, from: orders}\n"})
    (problem,) = problems_of(project)
    assert problem.startswith("flows/a.yaml:2:3: 'Orders' is also the name of the source in")
    assert f"{project}/pipeline.yaml, line 5;" in problem


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("../other/*.yaml", "is not in the directory of the project"),
        ("/etc/*.yaml", "is not in the directory of the project"),
        ("nothing/*.yaml", "no file matches 'nothing/*.yaml'"),
        ("flows/*", "flows/big.sql is not a YAML file"),
        ("[flows/../../x.yaml]", "is not in the directory of the project"),
        ("{a: b}", "'include' is a mapping"),
    ],
)
def test_include_that_is_wrong_is_reported_at_its_place(write: Write, include: str, expected: str) -> None:
    top = HEAD.replace("storage: lake\n", f"storage: lake\ninclude: {include}\n")
    (problem,) = problems_of(write({"pipeline.yaml": top, "flows/a.yaml": _BIG, "flows/big.sql": _QUERY}))
    assert problem.startswith("pipeline.yaml:3:")
    assert expected in problem


def test_links_that_lead_out_of_the_project_are_not_included(write: Write, tmp_path: Path) -> None:
    project = write({"pipeline.yaml": _TOP, "flows/a.yaml": "flows: {}\n"})
    (tmp_path / "outside.yaml").write_text("flows:\n  big: {zone: trusted, from: staged}\n")
    (project / "flows" / "b.yaml").symlink_to(tmp_path / "outside.yaml")
    assert list(load(str(project)).flows) == ["staged"]


def test_included_file_has_sources_and_flows_and_nothing_else(write: Write) -> None:
    project = write({"pipeline.yaml": _TOP, "flows/a.yaml": "storage: x\ninclude: y\nflows: {}\n"})
    assert [problem.partition(";")[0] for problem in problems_of(project)] == [
        "flows/a.yaml:1:1: an included file: unknown key 'storage'",
        "flows/a.yaml:2:1: an included file: unknown key 'include'",
    ]


def test_problem_in_an_included_file_has_its_name_and_line(write: Write) -> None:
    project = write({"pipeline.yaml": _TOP, "flows/a.yaml": "flows:\n  big: {zone: trustd, from: staged}\n"})
    assert problems_of(project) == [
        "flows/a.yaml:2:15: flow 'big': zone 'trustd' is not known; write trusted",
    ]


def test_problem_in_a_file_of_sql_has_its_line_and_column(write: Write) -> None:
    query = "-- orders\nSELECT *\nFROM   stage\n"
    project = write({"pipeline.yaml": _TOP, "flows/a.yaml": _BIG, "flows/big.sql": query})
    assert "flows/big.sql:3:8: flow 'big' reads 'stage', which is none of its inputs; write staged" in (
        problems_of(project)
    )


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("missing.sql", "missing.sql cannot be read: No such file or directory"),
        ("../../secret.sql", "is not in the directory of the project"),
        ("a.yaml", "'a.yaml' is not an SQL file"),
        ("big.sql, sql: SELECT 1", "'sql_file' and 'sql' exclude each other"),
    ],
)
def test_sql_file_that_cannot_be_used_is_reported(write: Write, named: str, expected: str) -> None:
    included = _BIG.replace("big.sql", named)
    project = write({"pipeline.yaml": _TOP, "flows/a.yaml": included, "flows/big.sql": _QUERY})
    assert any(expected in problem and problem.startswith("flows/a.yaml:2:") for problem in problems_of(project))


def test_sql_file_that_is_empty_or_not_utf8_is_reported_in_that_file(write: Write) -> None:
    project = write({"pipeline.yaml": _TOP, "flows/a.yaml": _BIG, "flows/big.sql": " \n"})
    assert "flows/big.sql:1:1: the file is empty; write SELECT ... FROM an input" in problems_of(project)
    (project / "flows" / "big.sql").write_bytes(b"SELECT *\n\xff")
    assert "flows/big.sql:2:1: the file is not UTF-8; save it as UTF-8" in problems_of(project)


def test_steps_can_be_in_files(write: Write) -> None:
    steps = (
        "flows:\n  big:\n    zone: trusted\n    from: staged\n    steps:\n      - {sql_file: big.sql, as: a}\n      "
    )
    files = {"pipeline.yaml": _TOP, "flows/a.yaml": steps + "- sql: SELECT * FROM a\n", "flows/big.sql": _QUERY}
    assert sql_of(load(str(write(files))), "big").text == _QUERY


def test_paths_of_schemas_are_relative_to_the_file_that_names_them(write: Write) -> None:
    included = "sources:\n  clicks: {topic: c, format: json, schema_file: schemas/clicks.ddl}\n"
    included += "flows:\n  clicks_staged: {zone: staging, from: clicks}\n"
    project = write({"pipeline.yaml": _TOP, "flows/a.yaml": included, "flows/schemas/clicks.ddl": "page STRING"})
    source = load(str(project)).sources["clicks"]
    assert source.schema_file == "flows/schemas/clicks.ddl"
    assert [column.name for column in source.columns] == ["page"]


def test_digest_of_a_flow_stays_when_its_sql_moves_into_a_file(write: Write) -> None:
    pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")
    from ottla.pipeline.flow_digest import flow_digest

    block = "  big:\n    zone: trusted\n    from: staged\n    sql: |\n" + "".join(
        f"      {line}\n" for line in _QUERY.splitlines()
    )
    inline = load(str(write({"one.yaml": HEAD + block}) / "one.yaml"))
    wanted = flow_digest(Graph(inline), inline.flows["big"])
    for query in (_QUERY, _QUERY.replace("\n", "\r\n"), f"\n{_QUERY};\n\n"):
        files = {"pipeline.yaml": _TOP, "flows/a.yaml": _BIG}
        project = write(files)
        (project / "flows" / "big.sql").write_bytes(query.encode())
        moved = load(str(project))
        assert flow_digest(Graph(moved), moved.flows["big"]) == wanted
    (project / "flows" / "big.sql").write_text(_QUERY.replace("10", "11"))
    changed = load(str(project))
    assert flow_digest(Graph(changed), changed.flows["big"]) != wanted


def test_position_in_a_text_with_values_leads_back_to_the_text_as_written() -> None:
    written = "a > ${x} AND\n  wrong = ${y}"
    text = "a > 'long value' AND\n  wrong = 1"
    replaced = ((4, 8, len("'long value'")), (written.index("${y}"), len(written), 1))
    sql = Text(text, Place("a.sql"), is_file=True, written=Written(written, replaced))
    assert sql.place_of(text.index("wrong")) == Place("a.sql", 2, 3)
    assert sql.place_of(text.index("value")) == Place("a.sql", 1, 5)
    assert sql.place_of(len(text) - 1) == Place("a.sql", 2, 11)
