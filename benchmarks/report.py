"""From samples to documents: medians, spreads, verdicts, and the tables of docs/reference/performance.md.

Everything here is a pure function of the samples; only write_report touches files.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scenarios import (
    CONTESTANTS,
    DEFAULT_KAFKA,
    DEFAULT_OTTLA,
    OURS_KAFKA,
    OURS_OTTLA,
    TUNED_KAFKA,
    TUNED_OTTLA,
    Scenario,
    SparkRow,
    Target,
)

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
CLUSTER_BEGIN, CLUSTER_END = "<!-- bench:cluster:begin -->", "<!-- bench:cluster:end -->"
SPARK_BEGIN, SPARK_END = "<!-- bench:spark:begin -->", "<!-- bench:spark:end -->"

#: scenario name -> broker or contestant -> one dict of metrics per round
Samples = Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]
Document = dict[str, Any]

_METRIC_TITLES = {
    "start_seconds": "start to first acknowledged record",
    "idle_mb": "idle memory (resident)",
    "idle_cpu_percent": "idle CPU",
    "loaded_mb": "memory (resident)",
    "create_seconds": "time to create",
    "empty_brokers_mb": "memory before that, all brokers (PSS)",
    "brokers_mb": "memory of all brokers (PSS)",
    "cluster_mb": "memory of all brokers and ZooKeeper (PSS)",
    "idle_cluster_cpu_percent": "idle CPU with ZooKeeper",
    "failover_seconds": "failover after the kill of broker 3",
    "failover_first_seconds": "failover after the kill of broker 1",
    "loaded_own_mb": "memory (without mapped files)",
    "p50_ms": "p50",
    "p99_ms": "p99",
    "p999_ms": "p99.9",
    "cores": "broker CPU",
    "records_per_second": "records/s",
    "idempotent_records_per_second": "records/s, idempotent only",
    "uncommitted_records_per_second": "records/s, read_uncommitted",
    "cost_percent": "cost",
    "cpu_seconds_per_million_records": "CPU per million records",
    "idempotent_cpu_seconds_per_million_records": "CPU per million records, idempotent only",
    "commit_p50_ms": "commit p50",
    "commit_p99_ms": "commit p99",
    "transactions_per_second": "transactions/s",
}
_METRIC_UNITS = {
    "start_seconds": " s",
    "idle_mb": " MB",
    "idle_cpu_percent": " %",
    "loaded_mb": " MB",
    "create_seconds": " s",
    "empty_brokers_mb": " MB",
    "brokers_mb": " MB",
    "cluster_mb": " MB",
    "idle_cluster_cpu_percent": " %",
    "failover_seconds": " s",
    "failover_first_seconds": " s",
    "loaded_own_mb": " MB",
    "memory_mb": " MB",
    "p50_ms": " ms",
    "p99_ms": " ms",
    "p999_ms": " ms",
    "cores": " cores",
    "us_per_request": " µs",
    "cpu_us_per_mb": " µs",
    "cost_percent": " %",
    "cpu_seconds_per_million_records": " s",
    "idempotent_cpu_seconds_per_million_records": " s",
    "commit_p50_ms": " ms",
    "commit_p99_ms": " ms",
}


_CONTESTANT_TITLES = {
    OURS_OTTLA: "Ottla's source, on Ottla",
    OURS_KAFKA: "Ottla's source, on Kafka",
    TUNED_OTTLA: "connector tuned, on Ottla",
    TUNED_KAFKA: "connector tuned, on Kafka",
    DEFAULT_OTTLA: "connector, on Ottla",
    DEFAULT_KAFKA: "connector, on Kafka",
}
_SPARK_METRICS = {
    "records_per_second": "records/s",
    "p50_ms": "p50 of a trigger",
    "memory_mb": "peak memory of JVM, Python driver and workers (PSS)",
}
#: heading -> Ottla's contestant, and the first there is of these
_SPARK_RATIOS = {
    "source on Ottla / connector on Kafka": (OURS_OTTLA, (TUNED_KAFKA, DEFAULT_KAFKA)),
    "both on Kafka": (OURS_KAFKA, (TUNED_KAFKA, DEFAULT_KAFKA)),
    "both on Ottla": (OURS_OTTLA, (TUNED_OTTLA, DEFAULT_OTTLA)),
}

_TRANSACTION_KINDS = ("transactions", "commit", "committed", "client-transactions")

#: a difference that may be nothing, or less: to divide it by another one says nothing
_NO_RATIO = frozenset({"cost_percent"})


# ---- Samples to a document


def summarise(samples: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Median, smallest and largest value of every metric over the rounds."""
    metrics = {name: [sample[name] for sample in samples] for name in (samples[0] if samples else {})}
    return {name: _spread(values) for name, values in metrics.items()}


def build_document(
    scenarios: Sequence[Scenario],
    samples: Samples,
    failures: Mapping[str, Mapping[str, str]],
    facts: Mapping[str, Any],
) -> Document:
    """Everything that was found, in the form of docs/reference/performance.json."""
    rows = []
    for scenario in scenarios:
        brokers = {name: summarise(found) for name, found in samples.get(scenario.name, {}).items()}
        row: Document = {"name": scenario.name, "title": scenario.title, "kind": scenario.kind}
        row["brokers"] = brokers
        row["targets"] = [verdict(target, brokers) for target in scenario.targets]
        if failures.get(scenario.name):
            row["failures"] = dict(failures[scenario.name])
        rows.append(row)
    return {**facts, "scenarios": rows}


def verdict(target: Target, brokers: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Document:
    """Whether Ottla's median meets the target; met is None when there is nothing to judge by."""
    value = _ratio(brokers, target.metric)
    if target.bound == "ottla <=":
        value = brokers.get("ottla", {}).get(target.metric, {}).get("median")
    met = None
    if value is not None:
        met = value >= target.limit if target.bound == "ratio >=" else value <= target.limit
    return {"metric": target.metric, "bound": target.bound, "limit": target.limit, "value": value, "met": met}


def build_spark(
    rows: Sequence[SparkRow],
    samples: Samples,
    failures: Mapping[str, Mapping[str, str]],
    facts: Mapping[str, Any],
) -> Document:
    """The same for Spark: what stands under "spark" in docs/reference/performance.json."""
    found = []
    for row in rows:
        contestants = {name: summarise(each) for name, each in samples.get(row.name, {}).items()}
        line: Document = {"name": row.name, "title": row.title, "contestants": contestants}
        if row.target is not None:
            line["target"] = _spark_verdict(row.target, contestants)
        if failures.get(row.name):
            line["failures"] = dict(failures[row.name])
        found.append(line)
    return {**facts, "rows": found}


def _spark_verdict(target: Target, contestants: Mapping[str, Any]) -> Document:
    against = TUNED_KAFKA if TUNED_KAFKA in contestants else DEFAULT_KAFKA
    pair = {"ottla": contestants.get(OURS_OTTLA, {}), "kafka": contestants.get(against, {})}
    return verdict(target, pair)


def merge_spark(old: Document | None, new: Document) -> Document:
    """Rows of an earlier run stay where this one has none, if both were made under the same conditions."""
    if old is None or any(old.get(name) != value for name, value in new.items() if name != "rows"):
        return new
    names = {row["name"] for row in new["rows"]}
    kept = {row["name"]: row for row in [*old["rows"], *new["rows"]]}
    return {**new, "rows": [kept[name] for name in dict.fromkeys([*(row["name"] for row in old["rows"]), *names])]}


# ---- A document to text


def render(document: Document) -> str:
    """The tables that stand between the markers of docs/reference/performance.md."""
    rows = document["scenarios"]
    parts = [_facts(document)]
    throughput = [row for row in rows if row["kind"] in ("produce", "consume", "client")]
    if throughput:
        parts.append("### Throughput\n\n" + _throughput(throughput))
    latency = [row for row in rows if row["kind"] == "e2e"]
    if latency:
        parts.append("### Latency\n\n" + _by_metric(latency))
    transactions = [row for row in rows if row["kind"] in _TRANSACTION_KINDS]
    if transactions:
        parts.append("### Transactions\n\n" + _by_metric(transactions))
    rest = [row for row in rows if row["kind"] in ("footprint", "loaded")]
    if rest:
        parts.append("### Start, memory and rest\n\n" + _by_metric(rest))
    return "\n\n".join(parts)


def render_cluster(document: Document) -> str:
    """Return the tables of clusters."""
    rows = document["scenarios"]
    parts = [_facts(document)]
    throughput = [row for row in rows if row["kind"] in ("produce", "client")]
    if throughput:
        parts.append(_throughput(throughput))
    rest = [row for row in rows if row["kind"] in ("e2e", "loaded", "many")]
    if rest:
        parts.append(_by_metric(rest))
    return "\n\n".join(parts)


def render_spark(document: Document) -> str:
    """The tables of Spark."""
    machine, settings = document["machine"], document["settings"]
    connector = f"Spark's Kafka connector {document['connector']}" if document["connector"] else "no Kafka connector"
    lines = [
        f"Spark {document['spark']} (`local[2]`, driver 2g, ParallelGC, warm) with Ottla {document['ottla']} and "
        f"{connector}, on Ottla and on Apache Kafka {document['kafka'] or '(absent)'}, both from the page cache; "
        f"{document['measured_on']}, {machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB; "
        f"{number(document['records'])} records of 9 + 100 B in 2 partitions; "
        f"median (smallest..largest) of {settings['rounds']} rounds. "
        "*Tuned* is `kafka.max.poll.records=10000`. The ratios set Ottla's source against the tuned connector, or the "
        "default one where there is nothing to tune."
    ]
    lines += [f"Missing: {reason}." for reason in document["missing"]]
    for metric, title in _SPARK_METRICS.items():
        rows = [row for row in document["rows"] if any(metric in each for each in row["contestants"].values())]
        if rows:
            lines.append(_spark_table(title, metric, rows))
    return "\n\n".join(lines)


def _spark_table(title: str, metric: str, rows: Sequence[Document]) -> str:
    shown = [
        name for name in CONTESTANTS if any(name in {**row["contestants"], **row.get("failures", {})} for row in rows)
    ]
    heads = [title, *(_CONTESTANT_TITLES[name] for name in shown), *_SPARK_RATIOS, "target"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        contestants = row["contestants"]
        cells = [row["title"]]
        cells += [_cell({"brokers": contestants, "failures": row.get("failures", {})}, name, metric) for name in shown]
        cells += [_times(_spark_ratio(contestants, ours, theirs, metric)) for ours, theirs in _SPARK_RATIOS.values()]
        target = row.get("target")
        cells.append(_targets([target] if target and target["metric"] == metric else []))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spark_ratio(contestants: Mapping[str, Any], ours: str, theirs: Sequence[str], metric: str) -> float | None:
    opponent: Mapping[str, Any] = next((contestants[name] for name in theirs if name in contestants), {})
    return _ratio({"ottla": contestants.get(ours, {}), "kafka": opponent}, metric)


def splice(page: str, tables: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with new tables between its markers; what people wrote outside of them stays as it is."""
    head, found_begin, rest = page.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"docs/reference/performance.md needs the lines {begin} and {end} to show where the tables go")
    return f"{head}{begin}\n{tables}\n{end}{tail}"


def write_report(docs: Path, document: Document) -> None:
    """Rows that were not measured, of single brokers, of clusters or of Spark, stay as they are."""
    page, figures = docs / "performance.md", docs / "performance.json"
    text = page.read_text()
    old: Document = json.loads(figures.read_text()) if figures.exists() else {}
    spark, cluster = old.get("spark_rows"), old.get("cluster_rows")
    if document.get("cluster_rows"):
        cluster = document["cluster_rows"]
        text = splice(text, render_cluster(cluster), CLUSTER_BEGIN, CLUSTER_END)
    if document.get("spark_rows"):
        spark = merge_spark(spark, document["spark_rows"])
        text = splice(text, render_spark(spark), SPARK_BEGIN, SPARK_END)
    if document["scenarios"]:
        text = splice(text, render(document))
        old = document
    page.write_text(text)
    apart = {"cluster_rows": cluster, "spark_rows": spark}
    written = {**old, **{name: rows for name, rows in apart.items() if rows}}
    figures.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")


def _facts(document: Document) -> str:
    machine, settings = document["machine"], document["settings"]
    brokers = f"Ottla {document['ottla']}" + (" (compiled)" if settings.get("compiled") else "")
    if document.get("kafka"):
        brokers += f" beside Apache Kafka {document['kafka']}"
    java = f", Java {machine['java']}" if machine.get("java") else ""
    return (
        f"{brokers}, {document['measured_on']}: {machine['cores']} cores ({machine['cpu']}), "
        f"{machine['memory_gb']} GB, Linux {machine['kernel']}, Python {machine['python']}{java}; "
        f"median (smallest..largest) of {settings['rounds']} rounds of {settings['seconds']:g} s. "
        "Where a cell holds two figures, Ottla's stands first."
    )


def _throughput(rows: Sequence[Document]) -> str:
    head = "| work | Ottla, records/s | Apache Kafka, records/s | ratio | target | broker CPU per request | "
    head += "CPU s per million records | CPU per MB | p50 / p99 / p99.9 ms |"
    lines = [head, "|---" * 9 + "|"]
    for row in rows:
        brokers = row["brokers"]
        cells = [row["title"]]
        cells += [_cell(row, name, "records_per_second") for name in ("ottla", "kafka")]
        cells += [_times(_ratio(brokers, "records_per_second")), _targets(row["targets"])]
        cells.append(_pair(brokers, "us_per_request", "µs"))
        cells.append(_pair(brokers, "cpu_seconds_per_million_records", "s"))
        cells.append(_pair(brokers, "cpu_us_per_mb", "µs"))
        cells.append(_latencies(brokers))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _by_metric(rows: Sequence[Document]) -> str:
    lines = ["| what | Ottla | Apache Kafka | ratio | target |", "|---|---|---|---|---|"]
    for row in rows:
        for metric, title in _METRIC_TITLES.items():
            if not any(metric in found for found in row["brokers"].values()):
                continue
            targets = [target for target in row["targets"] if target["metric"] == metric]
            cells = [f"{title}, {row['title']}", *(_cell(row, name, metric) for name in ("ottla", "kafka"))]
            cells += [_times(_ratio(row["brokers"], metric)), _targets(targets)]
            lines.append("| " + " | ".join(cells) + " |")
        if not any(row["brokers"].values()):
            lines.append(f"| {row['title']} | {_cell(row, 'ottla', '')} | {_cell(row, 'kafka', '')} | | |")
    return "\n".join(lines)


def _cell(row: Document, broker: str, metric: str) -> str:
    found = row["brokers"].get(broker, {}).get(metric)
    if found is None:
        return "failed" if broker in row.get("failures", {}) else "–"
    unit = _METRIC_UNITS.get(metric, "")
    median, low, high = (number(found[key]) for key in ("median", "min", "max"))
    return f"{median}{unit}" if low == high else f"{median}{unit} ({low}..{high})"


def _pair(brokers: Mapping[str, Any], metric: str, unit: str) -> str:
    """Ottla's median, then Kafka's."""
    medians = [brokers.get(name, {}).get(metric, {}).get("median") for name in ("ottla", "kafka")]
    if all(median is None for median in medians):
        return "–"
    return " / ".join("–" if median is None else number(median) for median in medians) + f" {unit}"


def _latencies(brokers: Mapping[str, Any]) -> str:
    texts = []
    for name in ("ottla", "kafka"):
        found = brokers.get(name, {})
        if "p50_ms" in found:
            medians = [found[metric]["median"] for metric in ("p50_ms", "p99_ms", "p999_ms")]
            texts.append(" / ".join(number(median) for median in medians))
    return "; ".join(texts) or "–"


def _targets(verdicts: Sequence[Document]) -> str:
    texts = []
    for found in verdicts:
        sign = {True: "met", False: "**not met**", None: "not judged"}[found["met"]]
        limit = f"{found['limit']:g}"
        if found["bound"] == "ottla <=":
            text = f"≤ {limit}{_METRIC_UNITS[found['metric']]}"
        else:
            text = f"{'≥' if found['bound'] == 'ratio >=' else '≤'} {limit}x"
        texts.append(f"{text}: {sign}")
    return ", ".join(texts) or "–"


def number(value: float) -> str:
    """A figure a person can read: three significant digits, thousands as k and millions as M."""
    for size, sign in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= size * 0.9995 and (sign == " M" or abs(value) >= 9_999.5):
            return _three_digits(value / size) + sign
    return _three_digits(value)


def _three_digits(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}x"


def _ratio(brokers: Mapping[str, Mapping[str, Mapping[str, float]]], metric: str) -> float | None:
    ottla, kafka = (brokers.get(name, {}).get(metric, {}).get("median") for name in ("ottla", "kafka"))
    return None if ottla is None or not kafka or metric in _NO_RATIO else _short(ottla / kafka)


def _spread(values: Sequence[float]) -> dict[str, float]:
    median = statistics.median(values)
    return {"median": _short(median), "min": _short(min(values)), "max": _short(max(values))}


def _short(value: float) -> float:
    return float(f"{value:.5g}")
