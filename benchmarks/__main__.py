"""`make bench`: measures Ottla beside Apache Kafka, and beside Spark's connector; writes docs/reference/performance.*.

Rounds are interleaved: every scenario runs on one broker and at once on the other, both warm. A run that was
shortened or narrowed (--quick, --only, --brokers) shows its tables but leaves the docs alone.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import cluster, kafka_server, ottla_server
from benchmarks.cluster import ClusterBench
from benchmarks.maven import ROOT, SCRATCH
from benchmarks.measure import Lab, MeasurementFailed, Metrics, compile_load
from benchmarks.report import build_document, number, render, render_cluster, render_spark, write_report
from benchmarks.scenarios import (
    CLUSTER_SCENARIOS,
    LOADED,
    SCENARIOS,
    SPARK_ROWS,
    SPARK_SCENARIOS,
    Scenario,
    SparkRow,
)
from benchmarks.spark import SparkBench

IDLE_SECONDS = 10.0
# Java compiles its hot paths while it runs; Python is as fast in the first second as later.
WARMUP_SECONDS = {"kafka": 5.0, "ottla": 1.0}
BUSY_LOAD = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    if options.list:
        named = [(each.name, each.title) for each in (*SCENARIOS, *CLUSTER_SCENARIOS)]
        for name, title in [*named, *SPARK_SCENARIOS.items()]:
            print(f"{name:28} {title}")
        return 0
    scenarios = [scenario for scenario in SCENARIOS if re.search(options.only, scenario.name)]
    clusters = [scenario for scenario in CLUSTER_SCENARIOS if re.search(options.only, scenario.name)]
    spark_rows = [row for row in SPARK_ROWS if re.search(options.only, row.scenario)]
    if not scenarios and not clusters and not spark_rows:
        print(f"bench: no scenario matches {options.only!r}; --list shows them", file=sys.stderr)
        return 2
    brokers = _usable_brokers(options.brokers)
    if not brokers:
        return 1
    SCRATCH.mkdir(exist_ok=True)
    if options.compiled and not _compile_hot_modules():
        return 1
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=SCRATCH))
    # Said explicitly: `kill` must take the brokers down too, and a shell starts background jobs with SIGINT off.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        bench = Bench(scenarios, clusters, spark_rows, brokers, options, directory)
        return bench.run()
    except MeasurementFailed as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Bench:
    """One run: its options, its samples, and the order in which they are taken."""

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        clusters: Sequence[Scenario],
        spark_rows: Sequence[SparkRow],
        brokers: Sequence[str],
        options: argparse.Namespace,
        directory: Path,
    ) -> None:
        self._scenarios = scenarios
        self._brokers = list(brokers)
        self._options = options
        every_row = (len(scenarios), len(clusters), len(spark_rows)) == (
            len(SCENARIOS), len(CLUSTER_SCENARIOS), len(SPARK_ROWS),
        )  # fmt: skip
        self._whole = not options.quick and len(brokers) == 2 and every_row
        self._lab = Lab(directory, compile_load(SCRATCH))
        self._clusters: ClusterBench | None = None
        if clusters and (reason := cluster.missing_parts(brokers)) is not None:
            print(f"skipping clusters: {reason}", flush=True)
        elif clusters:
            load, parent = compile_load(SCRATCH), directory / "cluster"
            self._clusters = ClusterBench(clusters, brokers, load, parent, quick=options.quick)
        self._spark: SparkBench | None = None
        if spark_rows:
            self._spark = SparkBench(spark_rows, brokers, self._lab, directory / "spark", quick=options.quick)
        self._samples: dict[str, dict[str, list[Metrics]]] = {}
        self._failures: dict[str, dict[str, str]] = {}

    def run(self) -> int:
        load = os.getloadavg()[0]
        if load > BUSY_LOAD:
            print(f"note: the machine is busy (load {load:.1f}); expect low figures, widely spread", flush=True)
        try:
            self._measure_all()
            if self._clusters is not None:
                # Single brokers take memory and CPU, and are not needed any more, except by Spark.
                if self._spark is None:
                    self._lab.close()
                self._clusters.run(self._options.rounds, self._options.seconds)
            if self._spark is not None:
                self._spark.run(self._options.rounds)
        finally:
            # A second Ctrl-C must not leave a broker behind.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("stopping the brokers", flush=True)
            if self._clusters is not None:
                self._clusters.close()
            self._lab.close()
        rows = [*self._scenarios, *([LOADED] if LOADED.name in self._samples else [])]
        facts = self._facts(load)
        document = build_document(rows, self._samples, self._failures, facts)
        if rows:
            print("\n" + render(document))
        if self._clusters is not None:
            document["cluster_rows"] = self._clusters.document(facts)
            print("\n" + render_cluster(document["cluster_rows"]))
        if self._spark is not None:
            document["spark_rows"] = self._spark.document(facts)
            print("\n" + render_spark(document["spark_rows"]))
        if self._whole or self._options.write:
            write_report(ROOT / "docs" / "reference", document)
            print("\nwritten: docs/reference/performance.md, docs/reference/performance.json")
        else:
            print("\ndocs/reference/performance.md is left as it is: this was not a whole run (--write overrides)")
        others = [each.failures for each in (self._clusters, self._spark) if each is not None]
        return 1 if any([self._failures, *others]) else 0

    def _measure_all(self) -> None:
        # Starts come first: they want the machine for themselves.
        at_rest = [scenario for scenario in self._scenarios if scenario.kind == "footprint"]
        at_work = [scenario for scenario in self._scenarios if scenario.kind != "footprint"]
        idle_seconds = 2.0 if self._options.quick else IDLE_SECONDS
        for round_number in range(1, self._options.rounds + 1):
            self._round(round_number, at_rest, idle_seconds)
        if not at_work:
            return
        self._warm_up(at_work)
        for round_number in range(1, self._options.rounds + 1):
            self._round(round_number, at_work, self._options.seconds)
            for broker in self._brokers:
                self._keep(LOADED, broker, self._lab.memory(broker))

    def _warm_up(self, scenarios: Sequence[Scenario]) -> None:
        for broker in self._brokers:
            seconds = WARMUP_SECONDS[broker] if not self._options.quick else min(WARMUP_SECONDS[broker], 2.0)
            for scenario in scenarios:
                _progress("warm-up", scenario, broker, f"{seconds:g} s")
                self._try(scenario, broker, seconds)

    def _round(self, round_number: int, scenarios: Sequence[Scenario], seconds: float) -> None:
        # The one that goes first finds the quieter disk, so they take turns.
        order = self._brokers if round_number % 2 else self._brokers[::-1]
        for scenario in scenarios:
            for broker in order:
                found = self._try(scenario, broker, seconds)
                if found is not None:
                    self._keep(scenario, broker, found)
                    _progress(f"round {round_number}/{self._options.rounds}", scenario, broker, _one_line(found))

    def _try(self, scenario: Scenario, broker: str, seconds: float) -> Metrics | None:
        """None when it failed, now or before: a row must not be made of the rounds that happened to work."""
        if broker in self._failures.get(scenario.name, {}):
            return None
        try:
            return self._lab.measure(broker, scenario, seconds)
        except MeasurementFailed as problem:
            _progress("failed", scenario, broker, str(problem))
            self._failures.setdefault(scenario.name, {})[broker] = str(problem).splitlines()[0]
            return None

    def _keep(self, scenario: Scenario, broker: str, found: Metrics) -> None:
        self._samples.setdefault(scenario.name, {}).setdefault(broker, []).append(found)

    def _facts(self, load: float) -> dict[str, Any]:
        return {
            "ottla": importlib.metadata.version("ottla"),
            "kafka": kafka_server.KAFKA_VERSION if "kafka" in self._brokers else None,
            "measured_on": datetime.date.today().isoformat(),
            "machine": machine_facts(java="kafka" in self._brokers),
            "settings": {
                "rounds": self._options.rounds,
                "seconds": self._options.seconds,
                "load_before": round(load, 2),
                "compiled": self._options.compiled,
            },
        }


def machine_facts(*, java: bool) -> dict[str, Any]:
    """What figures depend on; nothing that names the machine."""
    cpu = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kernel = re.match(r"\d+\.\d+", platform.release())
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu[1].strip() if cpu else platform.machine(),
        "memory_gb": round(memory / 2**30),
        "kernel": kernel[0] if kernel else "",
        "python": platform.python_version(),
        "java": str(kafka_server.java_version()) if java else None,
    }


def _usable_brokers(wanted: Sequence[str]) -> list[str]:
    """Those that can be started here; for each other one a line that says why not."""
    usable = []
    for name in wanted:
        if name == "kafka":
            # Without Java the jars would be of no use.
            reason = kafka_server.fetch() if kafka_server.java_version() else None
            reason = reason or kafka_server.available()
        else:
            reason = ottla_server.available()
        if reason is None:
            usable.append(name)
        else:
            print(f"skipping {name}: {reason}", flush=True)
    return usable


def _compile_hot_modules() -> bool:
    """Compile the hot modules for the broker under test; False if that failed, with the reason on the terminal."""
    directory = SCRATCH / "compiled"
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "compile_hot_modules.py"), str(directory)])
    ottla_server.COMPILED = directory
    return done.returncode == 0


def _progress(stage: str, scenario: Scenario, broker: str, text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {stage:10} {scenario.name:26} {broker:6} {text}", flush=True)


def _one_line(found: Metrics) -> str:
    shown = {
        "records_per_second": "records/s",
        "us_per_request": "µs CPU/request",
        "p50_ms": "ms p50",
        "p99_ms": "ms p99",
        "cost_percent": "% cost",
        "commit_p50_ms": "ms commit p50",
        "commit_p99_ms": "ms commit p99",
        "transactions_per_second": "transactions/s",
        "refused_per_transaction": "refused",
        "start_seconds": "s to first ack",
        "idle_mb": "MB idle",
        "idle_cpu_percent": "% CPU idle",
    }
    return ", ".join(f"{number(found[name])} {unit}" for name, unit in shown.items() if name in found)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=None, help="rounds per scenario and broker (3)")
    parser.add_argument("--seconds", type=float, default=None, help="seconds per measurement (5)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only scenarios whose name matches")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that everything works")
    parser.add_argument("--brokers", default="ottla,kafka", type=_names, help="ottla,kafka")
    parser.add_argument("--write", action="store_true", help="write the docs even after a narrowed run")
    parser.add_argument("--compiled", action="store_true", help="run Ottla with its hot modules compiled by mypyc")
    parser.add_argument("--list", action="store_true", help="name the scenarios and stop")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (1.0 if options.quick else 5.0)
    if unknown := set(options.brokers) - {"ottla", "kafka"}:
        parser.error(f"unknown broker {', '.join(sorted(unknown))}: say ottla, kafka or both")
    return options


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
