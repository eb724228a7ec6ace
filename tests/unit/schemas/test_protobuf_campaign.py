"""A short slice of ``make schemas``: random texts and pairs, compared with protoc and with records."""

from __future__ import annotations

from tests.schemas.protobuf_campaign import compare_pairs, compare_texts


def test_generated_texts_have_the_descriptors_of_protoc() -> None:
    assert compare_texts(1, 15)["valid"] > 8


def test_damaged_texts_are_rejected_where_protoc_rejects_them() -> None:
    assert compare_texts(1, 40, damaged=True)["invalid"] > 25


def test_compatible_readers_miss_no_field_of_generated_records() -> None:
    tally = compare_pairs(1, 12)
    assert tally["compatible"]
    assert tally["incompatible"]
