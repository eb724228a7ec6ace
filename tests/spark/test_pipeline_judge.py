"""The judge of `make campaign NAME=pipeline-kills` reports each kind of wrong output."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pipeline_file import is_undecodable, row_of
from pipeline_judge import Outputs, replay

_EVENTS = 400
_DECODED = [number for number in range(_EVENTS) if not is_undecodable(number)]
_RESULT = [row_of(number, "gold") for number in _DECODED if number % 3]
_RIGHT = Outputs(
    staged=_DECODED,
    undecodable=[number for number in range(_EVENTS) if is_undecodable(number)],
    result=_RESULT,
    topic=_RESULT[::-1],
    rejected=[row_of(number, "none") for number in _DECODED if number % 6 == 0],
    late=[row_of(number, "silver") for number in _DECODED if number % 6 == 3],
    latest=list(replay(_RESULT)),
)
_REJECTED_TWICE = replace(_RIGHT, rejected=[*_RIGHT.rejected, row_of(_RESULT[0].id, "none")])
#: event 205 is of the same account
_OLD = row_of(5, "gold")
_OLD_ROW = [_OLD, *(row for row in _RIGHT.latest if row.account != _OLD.account)]
_ACCEPTED = [row_of(row.id, "gold") for row in _RIGHT.rejected]


def test_right_outputs_have_no_problems() -> None:
    assert _RIGHT.problems(_EVENTS) == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (replace(_RIGHT, undecodable=_RIGHT.undecodable[1:]), "undecodable records: missing: 1, such as 99"),
        (replace(_RIGHT, staged=[*_DECODED, 7]), "staged events: unexpected or repeated: 1, such as 7"),
        (replace(_RIGHT, late=_RIGHT.late[1:]), "events in result, quarantine and late rows: missing: 1, such as 3"),
        (_REJECTED_TWICE, "events in result, quarantine and late rows: unexpected or repeated: 1, such as 1"),
        (replace(_RIGHT, topic=_RESULT[1:]), "rows of the topic, compared with the table: missing: 1, such as Row("),
        (replace(_RIGHT, topic=[*_RESULT, _RESULT[0]]), "compared with the table: unexpected or repeated: 1"),
        (replace(_RIGHT, latest=_OLD_ROW), "rows per account, compared with a replay: missing: 1"),
        (replace(_RIGHT, latest=[*_RIGHT.latest, _RESULT[0]]), "compared with a replay: unexpected or repeated: 1"),
        (replace(_RIGHT, rejected=_ACCEPTED), "rows with the tier of another output: 67"),
        (replace(_RIGHT, late=[row._replace(amount=-1) for row in _RIGHT.late]), "rows with changed values: 65"),
    ],
)  # fmt: skip
def test_wrong_output_is_reported(wrong: Outputs, problem: str) -> None:
    assert any(problem in line for line in wrong.problems(_EVENTS)), wrong.problems(_EVENTS)
