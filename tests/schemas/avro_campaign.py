"""Avro schemas compared with Java Avro on very many random pairs: ``make schemas``.

For each pair: whether each side is accepted as a new and as a stored schema, its canonical text, whether both are
equal, and the reasons of incompatibility, with path and fragments. Needs Java and the jars of PySpark.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyspark
from avro_answers import digest, own_answer, without_messages
from avro_pairs import Pair, pair

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


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--pairs", type=int, default=20_000)
    arguments.add_argument("--seed", type=int, default=1, help="the number of the first pair")
    arguments.add_argument("--show", type=int, default=5, help="how many differences to print")
    arguments.add_argument("--write", type=Path, help="write the answers of Java, in short, to this file")
    options = arguments.parse_args()
    started = time.monotonic()
    tally: Counter[str] = Counter()
    different = 0
    verdicts: dict[str, list[Any]] = {}
    for first in range(options.seed, options.seed + options.pairs, _PAIRS_PER_PROCESS):
        numbers = range(first, min(first + _PAIRS_PER_PROCESS, options.seed + options.pairs))
        pairs = [pair(number) for number in numbers]
        for number, each, java in zip(numbers, pairs, answer_of_java(pairs), strict=True):
            own, expected = own_answer(each), without_messages(java)
            verdicts[str(number)] = digest(expected)
            tally["accepted"] += expected["reader"] is not None and expected["writer"] is not None
            tally["compatible"] += expected.get("reasons") == []
            tally.update({reason[0] for reason in expected.get("reasons", [])})
            tally["exception"] += "exception" in expected
            if own != expected:
                different += 1
                if different <= options.show:
                    print(f"pair {number}: {each}")
                    for key in sorted(own.keys() | expected.keys()):
                        if own.get(key) != expected.get(key):
                            print(f"  {key}\n    here {own.get(key)}\n    Java {expected.get(key)}")
    if options.write:
        lines = ",\n".join(f"{json.dumps(number)}: {json.dumps(verdict)}" for number, verdict in verdicts.items())
        options.write.write_text(f"{{\n{lines}\n}}\n")
    seconds = time.monotonic() - started
    print(f"{options.pairs:,} pairs from {options.seed}: {different} differ from Java, {seconds:.0f} s")
    print(", ".join(f"{name} {count:,}" for name, count in tally.most_common()))
    if different:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
