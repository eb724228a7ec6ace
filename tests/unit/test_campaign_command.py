"""`make campaign`: the catalogue names functions that exist and take its options; a run ends with one line."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest

from campaign.__main__ import main, run, table
from campaign.catalogue import CAMPAIGNS, Campaign, Option
from campaign.report import CannotRun, Report, percentiles, shorten

_TESTS = Path(__file__).resolve().parents[1]


def keywords_of(campaign: Campaign) -> set[str]:
    """Return the arguments of the function of a campaign besides the report, without importing it."""
    place, _, name = campaign.function.partition(":")
    tree = ast.parse((_TESTS / f"{place.replace('.', '/')}.py").read_text())
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == (name or "run"))
    return {argument.arg for argument in function.args.kwonlyargs}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_function_of_a_campaign_takes_its_options(name: str) -> None:
    campaign = CAMPAIGNS[name]
    assert keywords_of(campaign) == {option.keyword for option in campaign.options}


def test_list_has_every_campaign_with_its_options() -> None:
    lines = table().splitlines()
    assert [line.split()[0] for line in lines if line and not line.startswith(" ")][2:-1] == list(CAMPAIGNS)
    assert "KILLS=20 SEED=1 ROLE=any SECURE=0 CLIENTS=librdkafka,aiokafka,java" in table()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["NAME=cluster-kils"], "there is no campaign 'cluster-kils'"),
        (["NAME=cluster-kills", "KILS=2"], "KILS: no such option"),
        (["NAME=cluster-kills", "KILLS=two"], "KILLS=two: expected a number"),
        (["NAME=cluster-kills", "ROLE=king"], "expected one of leader, controller"),
    ],
)
def test_wrong_name_or_option_is_refused_with_the_choices(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert text in capsys.readouterr().err


def test_text_of_an_option_is_parsed_by_the_type_of_its_default() -> None:
    assert Option("KILLS", 20, "").parse("5") == 5
    assert Option("SECONDS", 60.0, "").parse("2.5") == 2.5
    assert Option("SEED", None, "").parse("7") == 7
    assert [Option("SECURE", False, "").parse(text) for text in ("1", "0", "", None)] == [True, False, False, False]


@pytest.mark.parametrize(
    ("end", "code", "verdict"),
    [
        ("pass", 0, "PASS trial in 0 s: 3 kills"),
        ("problem", 1, "FAIL trial in 0 s: 1 problem, the first: a record is lost; 3 kills"),
        ("missing", 2, "CANNOT RUN trial: no Java"),
        ("interrupt", 1, "FAIL trial in 0 s: 1 problem, the first: interrupted"),
        ("error", 1, "FAIL trial in 0 s: 1 problem, the first: AssertionError: not in sync"),
    ],
)
def test_last_line_is_the_verdict(
    end: str, code: int, verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trial(report: Report, *, kind: str) -> None:
        if kind == "missing":
            raise CannotRun("no Java")
        if kind == "interrupt":
            raise KeyboardInterrupt
        assert kind != "error", "not in sync"
        report.figure("3 kills")
        if kind == "problem":
            report.problem("a record is lost")

    monkeypatch.setattr("campaign.__main__._function", lambda _: trial)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    campaign = Campaign(name="trial", description="", takes="", function="")
    assert run(campaign, {"kind": end}) == code
    assert capsys.readouterr().out.splitlines()[-1] == verdict


def test_progress_is_redrawn_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    report = Report("trial", out)
    report.progress(1, 2, "kills")
    report.say("broker 1 was killed")
    report.verdict()
    erased = "\r\x1b[K"
    assert out.getvalue().startswith(
        f"{erased}[############............] 1/2 kills, 0 s{erased}broker 1 was killed\n[##"
    )
    assert out.getvalue().endswith(f"{erased}PASS trial in 0 s\n")


def test_long_lists_are_shortened_and_times_are_summarized() -> None:
    assert shorten(["a"] * 5) == ["a"] * 5
    assert shorten(["a"] * 7) == [*["a"] * 5, "... 7 in all"]
    assert percentiles([3.0, 1.0, 2.0]) == "p50 2.00 s, p99 3.00 s, max 3.00 s"
