"""Whether an edited flow can continue with its checkpoint: a pure decision, from the record of the last run.

Spark refuses some edits when a query starts, and accepts others although the state no longer fits. Both were measured
with PySpark 4.3 (docs/operate/pipelines.md has the table). Here, edits that Spark would refuse and edits with wrong
results need a new checkpoint; all others keep it. Where the meaning of an edit is not known, it needs a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ottla.pipeline.duration import format_duration
from ottla.pipeline.flow_record import Checkpoint, Record

Plan = Literal[
    "unchanged", "keeps state", "needs a new checkpoint", "table refuses", "not recorded", "new", "recomputed"
]

#: plans with which a run does not start
REFUSED: Final = ("needs a new checkpoint", "table refuses")
#: Spark's name of the operator that joins two streams
_JOIN: Final = "symmetricHashJoin"
_NEXT_BATCH: Final = "applies from the next batch on"


@dataclass(frozen=True, slots=True)
class Edit:
    """One difference: what has changed, and its effect."""

    what: str
    effect: str
    keeps: bool = True

    def __str__(self) -> str:
        return f"{self.what}: {self.effect}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a run would do with a flow."""

    flow: str
    plan: Plan
    reasons: tuple[str, ...] = ()
    #: what to do if the run is refused
    remedy: str = ""

    @property
    def refused(self) -> bool:
        return self.plan in REFUSED


def decide(current: Record, checkpoint: Checkpoint, *, partitions: int | None = None, backfill: str = "") -> Decision:
    """Return what a run would do with a flow and its checkpoint.

    `partitions` are those that the declaration sets, `backfill` is the command that recomputes flows.
    """
    name = current["flow"]
    if not checkpoint.exists:
        return Decision(flow=name, plan="new", reasons=(_beginning(current),))
    recorded = checkpoint.record
    if recorded is None:
        why = "the checkpoint was written by an earlier release and has no record; edits are recorded from now on"
        return Decision(flow=name, plan="not recorded", reasons=(why,))
    edits = list(_edits(recorded, current, checkpoint))
    if not edits and recorded["digest"] != current["digest"]:
        edits.append(Edit("a part without influence on the state changed", _NEXT_BATCH))
    if partitions is not None and checkpoint.operators and checkpoint.partitions not in (None, partitions):
        effect = f"ignored, the checkpoint continues with {checkpoint.partitions} partitions"
        edits.append(Edit(f"spark.sql.shuffle.partitions is {partitions}", effect))
    broken = [edit for edit in edits if not edit.keeps]
    if broken:
        return Decision(
            flow=name,
            plan="needs a new checkpoint",
            reasons=tuple(map(str, broken)),
            remedy=_remedy(current, checkpoint, backfill),
        )
    if edits:
        return Decision(flow=name, plan="keeps state", reasons=tuple(map(str, edits)))
    return Decision(flow=name, plan="unchanged")


def _beginning(current: Record) -> str:
    start = {name: offsets for name, offsets in current["starting_offsets"].items() if offsets != "earliest"}
    if start:
        places = ", ".join(f"{name} from {offsets}" for name, offsets in start.items())
        return f"starts without state and reads {places}"
    return f"starts without state and reads {' and '.join(dict.fromkeys(current['reads']))} from the beginning"


def _remedy(current: Record, checkpoint: Checkpoint, backfill: str) -> str:
    name, version = current["flow"], current["version"]
    lost = "the state of its operators is dropped, and " if checkpoint.operators else ""
    table = current["table"]
    steps = f"write 'version: {version + 1}' in the flow"
    again = f"{lost}all of its input is read again"
    if table is not None:
        steps += f", then run '{backfill} {name}', which replaces the rows of {table['path']}"
        steps += " and of the flows that read it"
    if current["topics"]:
        again += f"; the topic {', '.join(current['topics'])} gets all rows again"
    return f"{steps}: {again}"


# -- differences ------------------------------------------------------------------------------------------------------


def _edits(old: Record, new: Record, checkpoint: Checkpoint) -> Iterator[Edit]:
    if old["digest"] == new["digest"] and old["starting_offsets"] == new["starting_offsets"]:
        # The digest leaves out what upstream flows do; a changed column of an input is looked for below.
        yield from _column_edits(old, new, checkpoint)
        yield from _watermark_edits(old, new, checkpoint)
        return
    yield from _input_edits(old, new)
    yield from _column_edits(old, new, checkpoint)
    yield from _watermark_edits(old, new, checkpoint)
    yield from _step_edits(old["steps"], new["steps"], checkpoint, "the query", new["deduplicate"])
    yield from _view_edits(old, new, checkpoint)
    yield from _operator_edits(old, new)
    yield from _result_edits(old, new)
    yield from _output_edits(old, new)


def _input_edits(old: Record, new: Record) -> Iterator[Edit]:
    if old["reads"] != new["reads"] or old["decodes"] != new["decodes"]:
        what = f"reads {_listed(new['reads'])}, before {_listed(old['reads'])}"
        yield Edit(what, "the offsets of the checkpoint belong to other inputs", keeps=False)
    for name, source in new["sources"].items():
        before = old["sources"].get(name)
        if before is not None:
            changed = [key for key in {**before, **source} if key != "topic" and source.get(key) != before.get(key)]
            what = f"{', '.join(changed)} of source {name} changed"
            if changed in (["registry"], ["key_registry"]):
                [key] = changed
                whose = f"source {name}" if key == "registry" else f"the keys of source {name}"
                what = f"the schema of {whose} is {_schema(source.get(key))}, before {_schema(before.get(key))}"
            if changed:
                yield Edit(what, "records are decoded so from the next batch on")
        if before is not None and old["starting_offsets"].get(name) != new["starting_offsets"].get(name):
            yield Edit(f"starting_offsets of source {name} changed", "ignored, the checkpoint continues where it ended")


def _schema(schema: Mapping[str, Any] | None) -> str:
    return f"version {schema['version']} of {schema['subject']}" if schema is not None else "not in a registry"


def _column_edits(old: Record, new: Record, checkpoint: Checkpoint) -> Iterator[Edit]:
    used = _words_of_state(new)
    for name, columns in new["columns"].items():
        before = old["columns"].get(name)
        if before is None or columns is None or before == columns:
            continue
        types = [one for one in columns if one in before and columns[one] != before[one]]
        removed = [one for one in before if one not in columns]
        added = [one for one in columns if one not in before]
        for one in (*types, *removed):
            change = f"is {columns[one]}, before {before[one]}" if one in columns else "was removed"
            in_state = checkpoint.operators and (_JOIN in checkpoint.operators or one.lower() in used)
            effect = "the state has values of it" if in_state else _NEXT_BATCH
            yield Edit(f"column {one} of {name} {change}", effect, keeps=not in_state)
        if added:
            keeps = _JOIN not in checkpoint.operators
            effect = "rows have it from the next batch on" if keeps else "the state of the join has rows without it"
            yield Edit(f"column {', '.join(added)} of {name} was added", effect, keeps=keeps)


def _words_of_state(record: Record) -> set[str]:
    """Return the words of a flow that may name columns in its state."""
    words = {one.lower() for one in record["deduplicate"]}
    for step in (*record["steps"], *(step for view in record["views"].values() for step in view["steps"])):
        if "sql" in step:
            shape = step["sql"]
            for text in (shape["group"], shape["tables"], *shape["aggregates"]):
                words.update(text.replace(".", " ").split())
    return words


def _watermark_edits(old: Record, new: Record, checkpoint: Checkpoint) -> Iterator[Edit]:
    for name, mark in new["watermarks"].items():
        before = old["watermarks"].get(name)
        if name not in old["watermarks"] or before == mark:
            continue
        if mark is not None and before is not None and mark[0] == before[0]:
            delays = f"{format_duration(mark[1])}, before {format_duration(before[1])}"
            yield Edit(f"the watermark delay of {name} is {delays}", _NEXT_BATCH)
        else:
            keeps = not checkpoint.operators
            effect = _NEXT_BATCH if keeps else "the state expires by another time"
            yield Edit(f"the watermark of {name} is {_mark(mark)}, before {_mark(before)}", effect, keeps=keeps)


def _mark(mark: Sequence[Any] | None) -> str:
    return f"{mark[0]}, {format_duration(mark[1])}" if mark is not None else "none"


def _step_edits(
    old: Sequence[Mapping[str, Any]],
    new: Sequence[Mapping[str, Any]],
    checkpoint: Checkpoint,
    called: str,
    keys: Sequence[str] = (),
    *,
    is_last: bool = True,
) -> Iterator[Edit]:
    if old == new:
        return
    if not checkpoint.operators:
        words = {word for step in new if "sql" in step for word in step["sql"]["words"]} - {"JOIN"}
        if words:
            what = f"{called} now has {' and '.join(sorted(words))}"
            yield Edit(what, "Spark cannot add an operator with state to a checkpoint without one", keeps=False)
        else:
            yield Edit(f"{called} changed", _NEXT_BATCH)
        return
    if _JOIN in checkpoint.operators:
        yield Edit(f"{called} changed", "the state of the join has the columns of the old one", keeps=False)
        return
    if len(old) != len(new) or any(("sql" in one) != ("sql" in other) for one, other in zip(old, new, strict=False)):
        yield Edit(f"the steps of {called} changed", "the state was computed by other steps", keeps=False)
        return
    for at, (one, other) in enumerate(zip(old, new, strict=True)):
        if "python" in other:
            if one != other:
                effect = "the state may have been computed by other code"
                yield Edit(f"the code of {other['python']} changed", effect, keeps=False)
        else:
            # Spark leaves aggregates out of the state that no later step reads.
            state_before = any("python" in step or step["sql"]["words"] for step in new[:at])
            last = is_last and at == len(new) - 1 and not state_before
            yield from _shape_edits(one["sql"], other["sql"], keys, last=last)


def _shape_edits(old: Mapping[str, Any], new: Mapping[str, Any], keys: Sequence[str], *, last: bool) -> Iterator[Edit]:
    for part, word in (("tables", "FROM"), ("group", "GROUP BY")):
        if old[part] != new[part]:
            what = f"{word} is {_short(new[part])}, before {_short(old[part])}"
            yield Edit(what, "the state has rows and groups of the old one", keeps=False)
    if old["aggregates"] != new["aggregates"]:
        what = f"aggregates are {_short(_listed(new['aggregates']))}, before {_short(_listed(old['aggregates']))}"
        yield Edit(what, "the state has values of the old ones", keeps=False)
    if old["items"] != new["items"]:
        named = {key.lower() for key in keys}
        changed = {*old["items"]} ^ {*new["items"]}
        in_state = not last or any(named & {*item.replace(".", " ").split()} for item in changed)
        effect = "an operator with state reads them" if in_state else _NEXT_BATCH
        yield Edit("columns of the SELECT changed", effect, keeps=not in_state)
    if old["filters"] != new["filters"]:
        effect = "applies from the next batch on; rows that are in the state stay there"
        yield Edit(f"the condition is {_short(new['filters']) or 'none'}", effect)


def _view_edits(old: Record, new: Record, checkpoint: Checkpoint) -> Iterator[Edit]:
    for name in sorted({*old["views"]} | {*new["views"]}):
        before, now = old["views"].get(name), new["views"].get(name)
        if before is None or now is None:
            continue  # the inputs of the flow show it
        yield from _step_edits(before["steps"], now["steps"], checkpoint, f"the view {name}", is_last=False)
        if before["deduplicate"] != now["deduplicate"]:
            yield Edit(f"deduplicate of the view {name} changed", "the state has other keys", keeps=False)
        if before["expectations"] != now["expectations"]:
            yield Edit(f"expectations of the view {name} changed", "apply from the next batch on")


def _operator_edits(old: Record, new: Record) -> Iterator[Edit]:
    if old["deduplicate"] != new["deduplicate"]:
        what = f"deduplicate is {_listed(new['deduplicate'])}, before {_listed(old['deduplicate'])}"
        yield Edit(what, "the state has the keys of the old one", keeps=False)
    elif old["second_read"] != new["second_read"] or old["late_read"] != new["late_read"]:
        changed = "late_rows" if old["late_rows"] != new["late_rows"] else "expect"
        word = "added" if new["second_read"] or new["late_read"] else "removed"
        effect = "the query reads its input another number of times than the checkpoint has offsets for"
        yield Edit(f"{changed} was {word}", effect, keeps=False)


def _result_edits(old: Record, new: Record) -> Iterator[Edit]:
    before, now = old["expectations"], new["expectations"]
    for name in {**now, **before}:
        if before.get(name) != now.get(name):
            change = "was added" if name not in before else "was removed" if name not in now else "changed"
            yield Edit(f"expectation {name!r} {change}", _NEXT_BATCH)
    if old["emit"] != new["emit"]:
        effect = "open windows are emitted so from the next batch on"
        yield Edit(f"emit is {new['emit']}, before {old['emit']}", effect)
    if old["late_rows"] != new["late_rows"] and old["late_read"] == new["late_read"]:
        yield Edit(f"late_rows is {new['late_rows'] or 'none'}", _NEXT_BATCH)


def _output_edits(old: Record, new: Record) -> Iterator[Edit]:
    before, now = old["table"], new["table"]
    if (before or {}).get("path") != (now or {}).get("path"):
        if now is None:
            yield Edit(f"the table {before['path']} is no longer written", "it stays as it is")
        else:
            yield Edit(f"the table is {now['path']}", "it gets rows from the next batch on; a backfill fills it")
    elif before is not None and now is not None:
        for key in ("keys", "sequence_by", "delete_when"):
            if before[key] != now[key]:
                effect = "rows that are in the table were merged by the old value; a backfill merges them again"
                yield Edit(f"{key} of the table changed", effect)
    added = [topic for topic in new["topics"] if topic not in old["topics"]]
    if added:
        yield Edit(f"the topic {', '.join(added)} was added", "it gets rows from the next batch on")


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words) or "nothing"


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
