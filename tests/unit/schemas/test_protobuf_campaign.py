"""A short slice of ``make campaign NAME=schemas``: random texts and pairs, compared with protoc and with records."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest
from tests.schemas.isolation import Crashed, in_child
from tests.schemas.protobuf_campaign import compare_pairs, compare_texts, survive
from tests.schemas.protoc import CRASHED, compile_with_protoc


def test_generated_texts_have_the_descriptors_of_protoc() -> None:
    assert compare_texts(1, 15)["valid"] > 8


def test_damaged_texts_are_rejected_where_protoc_rejects_them() -> None:
    assert compare_texts(1, 40, damaged=True)["invalid"] > 25


def test_compatible_readers_miss_no_field_of_generated_records() -> None:
    tally = compare_pairs(1, 12)
    assert tally["compatible"]
    assert tally["incompatible"]


def test_crash_of_protoc_is_the_result_of_one_text() -> None:
    worker = """
import os, sys
folder, first, count = sys.argv[1:4]
os.chdir(folder)
for index in range(int(first), int(count)):
    with open(f"t{index}.err", "w") as errors:
        errors.write("wrong")
    if index == 1:
        os.abort()
"""
    assert compile_with_protoc(["a", "b", "c"], worker=worker) == ["wrong", CRASHED, "wrong"]


def test_crash_of_the_library_is_counted_for_its_seed() -> None:
    def compare(first: int, count: int) -> Counter[str]:
        if 6 in range(first, first + count):
            os.kill(os.getpid(), signal.SIGKILL)
        return Counter(compared=count)

    assert survive(compare, 1, 8) == {"compared": 7, "the library crashed": 1}


def test_error_in_a_child_is_an_error_of_the_campaign() -> None:
    def fail() -> None:
        raise AssertionError("seed 7")

    with pytest.raises(AssertionError, match="seed 7"):
        in_child(fail)
    with pytest.raises(Crashed, match="-9"):
        in_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
