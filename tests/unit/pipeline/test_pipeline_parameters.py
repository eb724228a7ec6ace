"""Parameters and environments: values, precedence, literals in SQL, secrets, and environments that stay apart."""

from __future__ import annotations

import random
import textwrap
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from small_pipeline import HEAD

from ottla.pipeline import Arguments, BadDeclaration, Declaration, Pipeline, flow_tests
from ottla.pipeline.declaration import SqlStep
from ottla.pipeline.environments import _SQL_PATHS
from ottla.pipeline.keys import SECTIONS
from ottla.pipeline.load import parse
from ottla.pipeline.parameters import Value
from ottla.pipeline.preflight import EnvironmentMismatch, claim_checkpoints
from ottla.pipeline.sql import tokenize

_PARAMETERS = """\
parameters:
  currency: {default: EUR, description: "the currency"}
  least: {type: decimal}
  rows: {type: bigint, default: 100}
  password: {secret: true}
environments:
  dev:
    default: true
    storage: dev-lake
    parameters: {least: 1.50}
  prod:
    name: shop_prod
    storage: prod-lake
    brokers: kafka:9092
    properties: {security.protocol: SASL_SSL}
    parameters: {least: 10, currency: USD}
"""
_FLOWS = """\
  big:
    zone: trusted
    from: staged
    sql: |
      SELECT *
      FROM staged
      WHERE amount > ${least} AND order_id <> ${currency}
    expect:
      - {name: "is ${currency}", that: "amount < ${rows}"}
"""


@pytest.fixture
def text() -> str:
    head = HEAD.replace("storage: lake\n", "properties: {client.id: 'ottla-${env}', sasl.password: '${password}'}\n")
    limited = head.replace("format: json\n", "format: json\n    max_offsets_per_trigger: ${rows}\n")
    return limited.replace("name: shop\n", "name: shop\n" + _PARAMETERS) + _FLOWS


def read(text: str, arguments: Arguments | None = None, **keys: object) -> Declaration:
    def no_file(name: str) -> bytes:
        raise FileNotFoundError(2, "No such file or directory", name)

    given = arguments if arguments is not None else Arguments(**keys)  # type: ignore[arg-type]
    return parse(textwrap.dedent(text).encode(), "p.yaml", no_file, arguments=given)


def problems_of(text: str, **keys: object) -> list[str]:
    with pytest.raises(BadDeclaration) as bad:
        read(text, **keys)
    return [str(problem) for problem in bad.value.problems]


def query_of(declaration: Declaration, flow: str = "big") -> str:
    step = declaration.flows[flow].steps[-1]
    assert isinstance(step, SqlStep)
    return step.sql.text


def test_parameters_are_literals_in_sql_and_text_or_numbers_elsewhere(text: str) -> None:
    shop = read(text)
    assert query_of(shop).endswith("WHERE amount > 1.50BD AND order_id <> 'EUR'\n")
    (expectation,) = shop.flows["big"].expectations
    assert (expectation.name, expectation.predicate.text) == ("is EUR", "amount < 100L")
    assert shop.sources["orders"].max_offsets_per_trigger == 100
    assert shop.properties["client.id"] == "ottla-dev"


def test_environment_replaces_settings_and_adds_properties(text: str) -> None:
    dev, prod = read(text), read(text, environment="prod")
    assert (dev.name, dev.environment, dev.storage, dev.brokers) == ("shop", "dev", "dev-lake", "127.0.0.1:9092")
    assert (prod.name, prod.environment, prod.storage, prod.brokers) == ("shop_prod", "prod", "prod-lake", "kafka:9092")
    assert prod.checkpoints == "prod-lake/_checkpoints"
    assert prod.properties == {
        "client.id": "ottla-prod",
        "sasl.password": "***",
        "security.protocol": "SASL_SSL",
    }


def test_value_of_the_command_comes_before_variable_environment_and_default(text: str) -> None:
    shown = {"environment": "prod", "variables": {"OTTLA_PARAM_CURRENCY": "CZK", "OTTLA_PARAM_ROWS": "7"}}
    shop = read(text, parameters={"currency": "GBP"}, **shown)
    assert shop.parameters == {
        "currency": "GBP", "rows": "7", "least": "10", "password": "***", "env": "prod",
    }  # fmt: skip
    assert read(text, **shown).parameters["currency"] == "CZK"
    assert read(text, environment="prod").parameters["currency"] == "USD"
    assert read(text).parameters["currency"] == "EUR"


def test_environment_of_the_command_comes_before_the_variable_and_the_default(text: str) -> None:
    variables = {"OTTLA_ENV": "prod"}
    assert read(text, environment="dev", variables=variables).environment == "dev"
    assert read(text, variables=variables).environment == "prod"
    assert read(text).environment == "dev"
    assert read(HEAD, variables=variables).environment == ""


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"parameters": {"curency": "x"}}, "p.yaml:2:1: --param curency: there is no such parameter; write currency"),
        ({"environment": "prd"}, "p.yaml:7:1: there is no environment 'prd' (--env); write prod"),
        ({"variables": {"OTTLA_ENV": "x"}}, "there is no environment 'x' (OTTLA_ENV); write one of dev, prod"),
        ({"parameters": {"least": "ten"}}, "--param least: 'ten' is not of type decimal; write a decimal number"),
        ({"needs_secrets": True}, "p.yaml:6:3: the secret 'password' has no value; set OTTLA_PARAM_PASSWORD"),
    ],
)
def test_argument_that_is_wrong_is_a_problem_that_says_what_exists(
    text: str, keys: dict[str, object], expected: str
) -> None:
    (problem,) = problems_of(text, **keys)
    assert expected in problem


def test_missing_value_and_missing_environment_are_problems(text: str) -> None:
    (problem,) = problems_of(text.replace("parameters: {least: 1.50}", "parameters: {rows: 5}"))
    assert "p.yaml:4:3: the parameter 'least' has no value in environment 'dev'; add --param least=VALUE" in problem
    (problem,) = problems_of(text.replace("    default: true\n", ""))
    assert "none was chosen; add --env with one of dev, prod" in problem
    (problem,) = problems_of(HEAD, environment="dev")
    assert "there is no environment 'dev': the pipeline has none" in problem


def test_secret_is_used_where_it_is_not_shown_and_nowhere_else(text: str) -> None:
    shop = read(text, variables={"OTTLA_PARAM_PASSWORD": "hunter2"}, needs_secrets=True)
    assert shop.properties["sasl.password"] == "hunter2"
    assert "hunter2" not in str(shop.parameters)
    (problem,) = problems_of(text.replace("'EUR'", "x").replace("${currency}\n", "${password}\n"))
    assert "the secret ${password} would become visible here" in problem
    assert "use secrets in 'openlineage' and 'properties' and 'spark' only" in problem
    (problem,) = problems_of(text.replace("topic: shop.orders", "topic: ${password}"))
    assert "would become visible" in problem


def test_secret_that_the_environment_does_not_use_needs_no_value(text: str) -> None:
    moved = text.replace(", sasl.password: '${password}'", "")
    moved = moved.replace("{security.protocol: SASL_SSL}", '{sasl.password: "${password}"}')
    assert read(moved, needs_secrets=True).properties == {"client.id": "ottla-dev"}
    (problem,) = problems_of(moved, environment="prod", needs_secrets=True)
    assert "the secret 'password' has no value" in problem


def test_secret_is_not_in_files(text: str) -> None:
    (problem,) = problems_of(text.replace("{secret: true}", "{secret: true, default: x}"))
    assert "parameter 'password': a secret has no default" in problem
    (problem,) = problems_of(text.replace("{least: 1.50}", "{least: 1.50, password: x}"))
    assert "environment 'dev' sets the secret 'password'" in problem


@pytest.mark.parametrize(
    ("query", "column", "expected"),
    [
        ("SELECT * FROM staged WHERE a = '${currency}'", 33, "${currency} is inside of quotes"),
        ("SELECT * FROM staged WHERE `${currency}` = 1", 29, "${currency} is inside of quotes"),
        ("SELECT a_${currency} FROM staged", 10, "cannot be a part of a name or text"),
        ("SELECT staged.${currency} FROM staged", 15, "cannot be a part of a name or text"),
        ("SELECT r${currency} FROM staged", 9, "cannot be a part of a name or text"),
        ("SELECT ${curency} FROM staged", 8, "${curency} is not a parameter; write currency"),
        ("SELECT ${env:HOME} FROM staged", 8, "${env:HOME} is not a parameter"),
        ("SELECT ${currency FROM staged", 8, "${currency FROM staged is not a parameter"),
    ],
)
def test_placeholder_that_is_no_token_of_sql_is_a_problem_at_its_place(
    text: str, query: str, column: int, expected: str
) -> None:
    problems = problems_of(
        text.replace("      SELECT *\n      FROM staged\n", f"      {query}\n").replace("      WHERE", "      --")
    )
    line = text[: text.index("      SELECT *")].count("\n") + 1
    assert any(problem.startswith(f"p.yaml:{line}:{column + 6}: ") and expected in problem for problem in problems)


def test_comments_are_left_alone_and_two_dollars_stand_for_one(text: str) -> None:
    query = "SELECT *, '$${x}' AS a /* ${x} /* ${y} */ ${z} */ -- ${w}\n      FROM staged WHERE amount>${least}"
    shop = read(text.replace("SELECT *\n      FROM staged\n      WHERE amount > ${least}", query))
    assert query_of(shop).startswith("SELECT *, '${x}' AS a /* ${x} /* ${y} */ ${z} */ -- ${w}\n")
    assert "amount>1.50BD" in query_of(shop)


def test_problem_behind_a_value_is_reported_where_it_was_written(text: str) -> None:
    long = {"currency": "a currency with a long name"}
    problems = problems_of(text.replace("<> ${currency}", "<> ${currency} AND (x"), parameters=long)
    line = text[: text.index("      WHERE")].count("\n") + 1
    column = "      WHERE amount > ${least} AND order_id <> ${currency} AND (".index("(") + 1
    assert any(problem.startswith(f"p.yaml:{line}:{column}: flow 'big': this SQL") for problem in problems)


@pytest.mark.parametrize(
    ("type", "text", "sql"),
    [
        ("string", "it's", r"'it\'s'"),
        ("string", "a\\' OR 1=1 --", r"'a\\\' OR 1=1 --'"),
        ("string", "two\nlines", r"'two\nlines'"),
        ("string", "${env:HOME}", r"'\u0024{env:HOME}'"),
        ("int", "-5", "(-5)"),
        ("bigint", "5_000", None),
        ("bigint", str(2**63 - 1), f"{2**63 - 1}L"),
        ("int", str(2**31), None),
        ("decimal", "19.90", "19.90BD"),
        ("decimal", "1e3", "1000BD"),
        ("decimal", "1e99", None),
        ("decimal", "NaN", None),
        ("double", "1e300", "1e+300D"),
        ("double", "inf", None),
        ("boolean", "True", "TRUE"),
        ("boolean", "1", None),
        ("date", "2026-01-31", "DATE '2026-01-31'"),
        ("timestamp", "2026-01-31T12:00:00+02:00", "TIMESTAMP '2026-01-31T10:00:00Z'"),
        ("timestamp", "2026-01-31T12:00:00", None),
    ],
)
def test_value_is_one_literal_of_its_type_or_refused(type: str, text: str, sql: str | None) -> None:
    if sql is None:
        with pytest.raises(ValueError):
            Value.parse(type, text)
    else:
        assert Value.parse(type, text).sql == sql


def test_no_text_changes_the_query_around_it() -> None:
    """A literal is one token, whatever the text has in it."""
    generator = random.Random(17)
    for _ in range(3000):
        text = "".join(generator.choices("'\"`\\$ {}-/*;\n\r\0aé", k=generator.randrange(12)))
        literal = Value.parse("string", text).sql
        tokens, flaws = tokenize(f"SELECT {literal} FROM t")
        assert not flaws
        assert [token.kind for token in tokens] == ["word", "string", "word", "word"]


def test_values_have_types_in_python() -> None:
    shop = Pipeline(
        "shop", storage="lake",
        parameters={"day": {"type": "date", "default": "2026-01-31"}, "least": {"type": "decimal", "default": "1.5"},
                    "at": {"type": "timestamp", "default": "2026-01-31T00:00:00Z"}, "all": {"type": "boolean"}},
    )  # fmt: skip
    shop.source("orders", topic="orders.${day}", format="string")
    shop.flow("staged", zone="staging", from_="orders")
    with pytest.raises(RuntimeError, match="only in functions of flows"):
        _ = shop.parameters
    declaration = shop.declaration(lambda name: b"", arguments=Arguments(parameters={"all": "false"}))
    assert declaration.sources["orders"].topic == "orders.2026-01-31"
    assert shop.parameters == {
        "day": date(2026, 1, 31), "least": Decimal("1.5"), "at": datetime(2026, 1, 31, tzinfo=UTC), "all": False,
    }  # fmt: skip


def test_every_key_with_sql_gets_literals() -> None:
    titles = {"flow": (), "step": ("steps",), "expectation": ("expect",), "table sink": ("to",), "topic sink": ("to",)}
    paths = {
        ("flows", "*", *titles[section.title], key.name)
        for section in (*SECTIONS, *flow_tests.SECTIONS)
        for key in section.keys.values()
        if key.value in ("query", "SQL predicate")
    }
    assert paths == _SQL_PATHS


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("storage: prod-lake", "storage: ./dev-lake/", "have the same storage 'dev-lake'"),
        ("name: shop_prod\n    storage: prod-lake\n    brokers: kafka:9092",
         "brokers: 127.0.0.1:9092\n    storage: prod-lake", "have the same name 'shop' and brokers"),
        ("storage: prod-lake", "storage: prod-lake\n    checkpoints: dev-lake/_checkpoints/",
         "have the same checkpoints 'dev-lake/_checkpoints'"),
        ("    name: shop_prod\n", "", None),
        ("    name: shop_prod\n    storage: prod-lake\n    brokers: kafka:9092\n", "    storage: prod-lake\n",
         "have the same name 'shop' and brokers; the name is unique in a cluster: write name: shop_${env}"),
    ],
)  # fmt: skip
def test_environments_that_would_share_tables_or_the_name_are_refused(
    text: str, old: str, new: str, expected: str | None
) -> None:
    assert old in text
    if expected is None:
        read(text.replace(old, new))
    else:
        (problem,) = problems_of(text.replace(old, new))
        assert problem.startswith("p.yaml:12:3: environments 'dev' and 'prod' ")
        assert expected in problem


def test_name_of_the_environment_keeps_environments_apart(text: str) -> None:
    shared = text.replace("    storage: dev-lake\n", "").replace("    storage: prod-lake\n", "")
    assert read(shared.replace("name: shop\n", "name: shop\nstorage: lake/${env}\n")).storage == "lake/dev"
    (problem,) = problems_of(shared.replace("name: shop\n", "name: shop\nstorage: lake\n"))
    assert "have the same storage 'lake'" in problem


def test_checkpoints_of_one_environment_are_refused_to_another(text: str, tmp_path: Path) -> None:
    dev = replace(read(text), file=str(tmp_path / "p.yaml"))
    claim_checkpoints(dev)
    claim_checkpoints(dev)
    with pytest.raises(EnvironmentMismatch, match="belong to environment 'dev', and this run has environment 'prod'"):
        claim_checkpoints(replace(dev, environment="prod"))
    with pytest.raises(EnvironmentMismatch, match="this run has no environment"):
        claim_checkpoints(replace(dev, environment=""))
    (tmp_path / "dev-lake" / "_checkpoints" / "shop" / "_environment").unlink()
    claim_checkpoints(replace(dev, environment=""))
    claim_checkpoints(replace(dev, environment="prod"))


def test_placeholder_between_braces_without_quotes_is_explained() -> None:
    (problem,) = problems_of("name: shop\nproperties: {a: ${x}}\n")
    assert "between braces or brackets put a value with ${...} in quotes" in problem


def test_parameters_are_replaced_in_files_of_sql(tmp_path: Path, text: str) -> None:
    from ottla.pipeline import load

    moved = text.replace(
        "    sql: |\n      SELECT *\n      FROM staged\n      WHERE amount > ${least} AND order_id <> ${currency}\n",
        "    sql_file: big.sql\n",
    )
    assert "sql_file" in moved
    (tmp_path / "pipeline.yaml").write_text(moved)
    (tmp_path / "big.sql").write_text("SELECT *\nFROM staged WHERE amount > ${least} AND b = '${currency}'")
    with pytest.raises(BadDeclaration) as bad:
        load(str(tmp_path))
    assert f"{tmp_path}/big.sql:2:46: ${{currency}} is inside of quotes" in str(bad.value)
    (tmp_path / "big.sql").write_text("SELECT *\nFROM staged WHERE amount > ${least}")
    assert query_of(load(str(tmp_path))) == "SELECT *\nFROM staged WHERE amount > 1.50BD"
