"""Avro schemas compared with Java Avro on very many random pairs.

For each pair: whether each side is accepted as a new and as a stored schema, its canonical text, whether both are
equal, and the reasons of incompatibility, with path and fragments. Needs Java and the jars of PySpark.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyspark
from avro_answers import digest, own_answer, without_messages
from avro_pairs import Pair, pair

from campaign.report import Report, shorten

_PROGRAM = Path(__file__).with_name("AvroVerdicts.java")
_JARS = Path(pyspark.__file__).with_name("jars")
_PAIRS_PER_PROCESS = 20_000


def answer_of_java(pairs: list[Pair]) -> list[dict[str, Any]]:
    """Return what Java Avro says about each pair."""
    lines = [json.dumps(asdict(each)) + "\n" for each in pairs]
    names = ("avro-1", "jackson-core", "jackson-databind", "jackson-annotations", "slf4j-api", "commons-compress")
    class_path = ":".join(str(jar) for jar in sorted(_JARS.glob("*.jar")) if jar.name.startswith(names))
    with tempfile.TemporaryDirectory() as directory:
        compiler = ["javac", "-nowarn", "-Xlint:-deprecation", "-cp", class_path, "-d", directory, str(_PROGRAM)]
        subprocess.run(compiler, check=True, stderr=subprocess.DEVNULL)
        done = subprocess.run(
            ["java", "-cp", f"{class_path}:{directory}", _PROGRAM.stem],
            input="".join(lines).encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(report: Report, *, pairs: int, seed: int) -> dict[str, list[Any]]:
    """Compare pairs, of which ``seed`` is the number of the first. Return the answers of Java, in short, by number."""
    tally: Counter[str] = Counter()
    differences: list[str] = []
    verdicts: dict[str, list[Any]] = {}
    for first in range(seed, seed + pairs, _PAIRS_PER_PROCESS):
        report.progress(first - seed, pairs, "pairs of Avro schemas")
        numbers = range(first, min(first + _PAIRS_PER_PROCESS, seed + pairs))
        drawn = [pair(number) for number in numbers]
        for number, each, java in zip(numbers, drawn, answer_of_java(drawn), strict=True):
            own, expected = own_answer(each), without_messages(java)
            verdicts[str(number)] = digest(expected)
            tally["accepted"] += expected["reader"] is not None and expected["writer"] is not None
            tally["compatible"] += expected.get("reasons") == []
            tally.update({reason[0] for reason in expected.get("reasons", [])})
            tally["exception"] += "exception" in expected
            if own != expected:
                different = [key for key in sorted(own.keys() | expected.keys()) if own.get(key) != expected.get(key)]
                answers = "".join(
                    f"\n  {key}\n    here {own.get(key)}\n    Java {expected.get(key)}" for key in different
                )
                differences.append(f"pair {number} differs from Java: {each}{answers}")
    report.problems_found(shorten(differences))
    report.say(", ".join(f"{name} {count:,}" for name, count in tally.most_common()))
    report.figure(f"Avro: {pairs:,} pairs from {seed}, {len(differences)} differ from Java")
    return verdicts


def write_verdicts(verdicts: Mapping[str, list[Any]], path: Path) -> None:
    lines = ",\n".join(f"{json.dumps(number)}: {json.dumps(verdict)}" for number, verdict in verdicts.items())
    path.write_text(f"{{\n{lines}\n}}\n")
