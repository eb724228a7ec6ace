"""The benchmark's report: what it says about given samples. How fast anything is never decides a test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.raw_client import Cursor, count_batches, encode_batch, sample_values
from benchmarks.report import (
    BEGIN,
    CLUSTER_BEGIN,
    CLUSTER_END,
    END,
    SPARK_BEGIN,
    SPARK_END,
    build_document,
    build_spark,
    merge_spark,
    number,
    render,
    render_cluster,
    render_spark,
    splice,
    summarise,
    verdict,
    write_report,
)
from benchmarks.scenarios import (
    CLUSTER_SCENARIOS,
    CONTESTANTS,
    SCENARIOS,
    SPARK_ROWS,
    SPARK_SCENARIOS,
    Scenario,
    Target,
)

FACTS = {
    "ottla": "0.1.0",
    "kafka": "4.3.0",
    "measured_on": "2026-01-02",
    "machine": {"cores": 2, "cpu": "some", "memory_gb": 4, "kernel": "6.1", "python": "3.11", "java": "17"},
    "settings": {"rounds": 3, "seconds": 5.0},
}
PRODUCE = Scenario(
    name="single", title="single records", kind="produce", targets=(Target("records_per_second", "ratio >=", 2.0),)
)

SPARK_FACTS = {**FACTS, "spark": "4.3.0", "connector": "4.2.0", "records": 2_000_000, "missing": []}
READ = next(row for row in SPARK_ROWS if row.name == "spark-read-value")


def rates(**values: float) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Samples of one row, contestants in their order."""
    found = zip(CONTESTANTS, values.values(), strict=False)
    return {READ.name: {contestant: [{"records_per_second": value}] for contestant, value in found}}


def medians(**values: float) -> dict[str, dict[str, dict[str, float]]]:
    return {broker: {"p99_ms": {"median": value}} for broker, value in values.items()}


def test_a_summary_holds_median_and_spread_of_every_metric():
    found = summarise([{"p99_ms": 3.0}, {"p99_ms": 1.0}, {"p99_ms": 2.0}])
    assert found == {"p99_ms": {"median": 2.0, "min": 1.0, "max": 3.0}}


@pytest.mark.parametrize(("bound", "met"), [("ratio >=", False), ("ratio <=", True), ("ottla <=", False)])
def test_a_target_is_judged_by_its_bound(bound: str, met: bool):
    target = Target("p99_ms", bound, 1.0)  # type: ignore[arg-type]
    assert verdict(target, medians(ottla=2.0, kafka=4.0))["met"] is met


def test_a_ratio_without_kafka_is_not_judged():
    assert verdict(Target("p99_ms", "ratio <=", 1.0), medians(ottla=2.0))["met"] is None


def test_a_row_shows_both_brokers_the_ratio_and_the_verdict():
    samples = {"single": {"ottla": [{"records_per_second": 60_000.0}], "kafka": [{"records_per_second": 20_000.0}]}}
    row = render(build_document([PRODUCE], samples, {}, FACTS)).splitlines()[-1]
    assert row.startswith("| single records | 60.0 k | 20.0 k | 3.00x | ≥ 2x: met |")


def test_a_failed_measurement_is_shown_as_failed():
    samples = {"single": {"kafka": [{"records_per_second": 20_000.0}]}}
    row = render(build_document([PRODUCE], samples, {"single": {"ottla": "it ended"}}, FACTS)).splitlines()[-1]
    assert row.startswith("| single records | failed | 20.0 k | – | ≥ 2x: not judged |")


def test_new_tables_replace_only_what_stands_between_the_markers():
    page = f"# Title\n{BEGIN}\nold\n{END}\n## What was found\nprose\n"
    assert splice(page, "new") == f"# Title\n{BEGIN}\nnew\n{END}\n## What was found\nprose\n"


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="needs the lines"):
        splice("# Title\n", "new")


def test_the_written_json_is_the_document_behind_the_tables(tmp_path: Path):
    (tmp_path / "performance.md").write_text(f"{BEGIN}\n{END}\n")
    document = build_document([PRODUCE], {"single": {"ottla": [{"records_per_second": 1.0}]}}, {}, FACTS)
    write_report(tmp_path, document)
    assert json.loads((tmp_path / "performance.json").read_text()) == document


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123, "0.12"), (15.04, "15.0"), (999.6, "1000"), (9_639.0, "9639"), (47_100.0, "47.1 k"), (1.7e6, "1.70 M")],
)
def test_numbers_have_three_digits_and_a_size(value: float, text: str):
    assert number(value) == text


def test_scenario_names_are_unique():
    names = [scenario.name for scenario in (*SCENARIOS, *CLUSTER_SCENARIOS)]
    assert len(names) == len(set(names))


def test_a_row_of_spark_sets_our_source_against_the_tuned_connector():
    samples = rates(ours_ottla=3e6, ours_kafka=2e6, tuned_ottla=1.5e6, tuned_kafka=1e6, ottla=9e5, kafka=5e5)
    row = render_spark(build_spark([READ], samples, {}, SPARK_FACTS)).splitlines()[-1]
    assert row.endswith("| 900 k | 500 k | 3.00x | 2.00x | 2.00x | ≥ 1.5x: met |")


def test_without_the_connector_rows_of_spark_show_what_there_is_and_what_is_missing():
    facts = {**SPARK_FACTS, "connector": None, "missing": ["no `mvn` was found"]}
    text = render_spark(build_spark([READ], rates(ours_ottla=3e6), {}, facts))
    assert "Missing: no `mvn` was found." in text
    assert text.splitlines()[-1] == "| batch read, value only | 3.00 M | – | – | – | ≥ 1.5x: not judged |"


def test_a_contestant_that_failed_at_everything_is_shown_as_failed():
    document = build_spark([READ], rates(ours_ottla=3e6), {READ.name: {"ottla@kafka": "it ended"}}, SPARK_FACTS)
    assert render_spark(document).splitlines()[-1].startswith("| batch read, value only | 3.00 M | failed |")


def test_spark_rows_measured_in_pieces_come_together():
    first, second = (build_spark([row], {}, {}, SPARK_FACTS) for row in SPARK_ROWS[:2])
    assert [row["name"] for row in merge_spark(first, second)["rows"]] == [row.name for row in SPARK_ROWS[:2]]


def test_spark_rows_of_other_conditions_are_not_kept():
    first, second = (build_spark([row], {}, {}, SPARK_FACTS) for row in SPARK_ROWS[:2])
    assert merge_spark({**first, "records": 1}, second) == second


def test_a_run_of_spark_alone_leaves_the_brokers_rows(tmp_path: Path):
    (tmp_path / "performance.md").write_text(f"{BEGIN}\nbrokers\n{END}\n{SPARK_BEGIN}\n{SPARK_END}\n")
    (tmp_path / "performance.json").write_text(json.dumps({"scenarios": ["old"]}))
    spark = build_spark([READ], rates(ours_ottla=3e6), {}, SPARK_FACTS)
    write_report(tmp_path, {**FACTS, "scenarios": [], "spark_rows": spark})
    assert "brokers" in (tmp_path / "performance.md").read_text()
    assert json.loads((tmp_path / "performance.json").read_text()) == {"scenarios": ["old"], "spark_rows": spark}


def test_a_run_of_clusters_leaves_the_other_tables_alone(tmp_path: Path):
    (tmp_path / "performance.md").write_text(f"{BEGIN}\nbrokers\n{END}\n{CLUSTER_BEGIN}\n{CLUSTER_END}\n")
    (tmp_path / "performance.json").write_text(json.dumps({"scenarios": ["old"], "spark_rows": {"rows": []}}))
    many = next(scenario for scenario in CLUSTER_SCENARIOS if scenario.kind == "many")
    samples = {many.name: {"ottla": [{"brokers_mb": 100.0, "failover_seconds": 1.5}], "kafka": [{"brokers_mb": 1e3}]}}
    cluster = build_document([many], samples, {}, FACTS)
    write_report(tmp_path, {**FACTS, "scenarios": [], "cluster_rows": cluster})
    page = (tmp_path / "performance.md").read_text()
    assert "brokers\n" in page
    assert render_cluster(cluster) in page
    assert "| memory of all brokers (PSS), 3,000 partitions | 100 MB | 1000 MB | 0.10x | ≤ 0.2x: met |" in page
    written = json.loads((tmp_path / "performance.json").read_text())
    assert written == {"scenarios": ["old"], "cluster_rows": cluster, "spark_rows": {"rows": []}}


def test_fields_of_a_response_are_read_in_order():
    fields = Cursor(b"\0\0\0\5" + b"\0\2ab" + b"\xff\xff" + b"\0\0\0\2\0\0\0\1\0\0\0\3" + b"\0\0\0\7")
    assert (fields.int32(), fields.string(), fields.string(), fields.int32s()) == (5, "ab", "", (1, 3))
    assert fields.int32() == 7


def test_every_row_of_spark_belongs_to_a_scenario():
    assert {row.scenario for row in SPARK_ROWS} == set(SPARK_SCENARIOS)


def test_records_are_counted_by_whole_batches_without_markers():
    batch = encode_batch(sample_values(100, 7))
    marker = bytearray(batch)
    marker[22] |= 0x20
    assert count_batches(batch + marker + batch[:-1]) == (7, 7)
