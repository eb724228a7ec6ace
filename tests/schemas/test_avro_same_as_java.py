"""Verdicts about random pairs of Avro schemas equal those of Java Avro 1.12, which are stored: no Java is needed.

The campaign `schemas` compares many more pairs with a running Java. After a change of the generator, this writes the
file:
make campaign NAME=schemas FORMAT=avro PAIRS=400 WRITE=tests/schemas/avro_verdicts.json
"""

from __future__ import annotations

import json
from pathlib import Path

from avro_answers import digest, own_answer
from avro_pairs import pair

VERDICTS = json.loads(Path(__file__).with_name("avro_verdicts.json").read_text())


def test_verdicts_and_texts_equal_those_of_java() -> None:
    different = [number for number, verdict in VERDICTS.items() if digest(own_answer(pair(int(number)))) != verdict]
    assert different == []


def test_stored_verdicts_contain_every_kind_of_reason() -> None:
    kinds = {reason.split()[0] for verdict in VERDICTS.values() for reason in verdict[1:]}
    assert kinds == {
        "FIXED_SIZE_MISMATCH", "MISSING_ENUM_SYMBOLS", "MISSING_UNION_BRANCH", "NAME_MISMATCH",
        "READER_FIELD_MISSING_DEFAULT_VALUE", "TYPE_MISMATCH",
    }  # fmt: skip
