"""Indexes, producer snapshots and epochs against the dumbest code that does the same."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log.epochs import LeaderEpochs
from ottla.log.index import POSITION_MASK, RELATIVE_OFFSET_MAX, OffsetIndex, TimeIndex
from ottla.log.producers import WINDOW, ProducedBatch, Producers
from ottla.model.batch import SEQUENCES

moderate = settings(deadline=None, derandomize=True, max_examples=150)

rising = st.lists(st.integers(1, RELATIVE_OFFSET_MAX), unique=True, max_size=30).map(sorted)
#: around what was chosen and at the edges of what fits
probes = st.integers(-2, RELATIVE_OFFSET_MAX + 2)


@st.composite
def offset_entries(draw: st.DrawFn) -> list[tuple[int, int]]:
    offsets = draw(rising)
    size = len(offsets)
    positions = sorted(draw(st.sets(st.integers(1, RELATIVE_OFFSET_MAX), min_size=size, max_size=size)))
    return list(zip(offsets, positions, strict=True))


def offset_index(entries: list[tuple[int, int]]) -> OffsetIndex:
    index = OffsetIndex()
    for offset, position in entries:
        index.append(offset, position)
    return index


def near(values: list[int], probe: int) -> list[int]:
    return [probe, *values, *(value - 1 for value in values), *(value + 1 for value in values)]


@moderate
@given(offset_entries(), probes)
def test_position_before_is_the_last_entry_that_ends_at_or_before(entries: list[tuple[int, int]], probe: int) -> None:
    index = offset_index(entries)
    for wanted in near([offset for offset, _ in entries], probe):
        dumb = max((position for offset, position in entries if offset <= wanted), default=0)
        assert index.entry_before(wanted) & POSITION_MASK == dumb


@moderate
@given(offset_entries(), probes)
def test_position_at_most_is_the_last_entry_that_starts_there(entries: list[tuple[int, int]], probe: int) -> None:
    index = offset_index(entries)
    for limit in near([position for _, position in entries], probe):
        dumb = max((position for _, position in entries if position <= limit), default=0)
        assert index.entry_at_most(limit) & POSITION_MASK == dumb


@moderate
@given(offset_entries(), probes)
def test_truncated_offset_index_holds_what_ends_before(entries: list[tuple[int, int]], probe: int) -> None:
    for cut in near([offset for offset, _ in entries], probe):
        index = offset_index(entries)
        index.truncate(cut)
        assert index.entries == offset_index([entry for entry in entries if entry[0] < cut]).entries


@moderate
@given(offset_entries())
def test_offset_index_comes_back_from_its_bytes(entries: list[tuple[int, int]]) -> None:
    data = offset_index(entries).to_bytes()
    assert data == b"".join(offset.to_bytes(4, "big") + position.to_bytes(4, "big") for offset, position in entries)
    index = OffsetIndex.from_bytes(data)
    assert index.entries == offset_index(entries).entries
    assert index.is_sound(RELATIVE_OFFSET_MAX + 1)


@moderate
@given(offset_entries().filter(len), st.integers(1, 50), st.binary(max_size=7))
def test_preallocated_tail_is_cut_off(entries: list[tuple[int, int]], zeros: int, rest: bytes) -> None:
    data = offset_index(entries).to_bytes() + bytes(8 * zeros) + rest
    assert OffsetIndex.from_bytes(data).entries == offset_index(entries).entries


@moderate
@given(offset_entries().filter(lambda entries: len(entries) > 2), st.data())
def test_hole_of_zeros_is_seen(entries: list[tuple[int, int]], data: st.DataObject) -> None:
    hole = data.draw(st.integers(0, len(entries) - 2))
    content = bytearray(offset_index(entries).to_bytes())
    content[hole * 8 : hole * 8 + 8] = bytes(8)
    assert not OffsetIndex.from_bytes(bytes(content)).is_sound(RELATIVE_OFFSET_MAX + 1)


@moderate
@given(offset_entries().filter(len))
def test_entry_beyond_the_file_is_seen(entries: list[tuple[int, int]]) -> None:
    assert not offset_index(entries).is_sound(entries[-1][1])


timestamps = st.integers(-1, 2**62)


@moderate
@given(st.lists(st.tuples(timestamps, st.integers(0, 2**31 - 1)), max_size=30), st.integers(-2, 2**62))
def test_every_record_up_to_offset_before_is_older(appended: list[tuple[int, int]], probe: int) -> None:
    """Entries are (largest timestamp so far, its offset); records in between are no newer."""
    index, kept = TimeIndex(), []
    for timestamp, offset in appended:
        index.maybe_append(timestamp, offset)
        if not kept or (timestamp > kept[-1][0] and offset > kept[-1][1]):
            kept.append((timestamp, offset))
    for wanted in near([timestamp for timestamp, _ in kept], probe):
        dumb = max((offset for timestamp, offset in kept if timestamp < wanted), default=-1)
        assert index.offset_before(wanted) == dumb
    for cut in near([offset for _, offset in kept], probe):
        truncated = TimeIndex.from_bytes(index.to_bytes())
        truncated.truncate(cut)
        pairs = list(zip(truncated.timestamps, truncated.offsets, strict=True))
        assert pairs == [entry for entry in kept if entry[1] < cut]


@moderate
@given(st.lists(st.tuples(timestamps, st.integers(0, 2**31 - 1)), max_size=30), st.binary(max_size=11))
def test_time_index_comes_back_from_its_bytes(appended: list[tuple[int, int]], rest: bytes) -> None:
    index = TimeIndex()
    for timestamp, offset in appended:
        index.maybe_append(timestamp, offset)
    loaded = TimeIndex.from_bytes(index.to_bytes() + rest)
    assert (loaded.timestamps, loaded.offsets) == (index.timestamps, index.offsets)


# -- producers --------------------------------------------------------------------------------------------------------

produced = st.tuples(
    st.integers(0, 3), st.integers(0, 2), st.integers(0, SEQUENCES - 1), st.integers(0, 50), st.integers(0, 2**40)
)


def state(producers: Producers) -> dict[int, tuple[object, ...]]:
    return {
        producer_id: (
            entry.epoch, entry.next_sequence, entry.timestamp, entry.batches, entry.coordinator_epoch,
            entry.txn_first_offset,
        )
        for producer_id, entry in producers.entries.items()
    }  # fmt: skip


@moderate
@given(st.lists(produced, max_size=40))
def test_snapshot_brings_back_the_window_of_five(batches: list[tuple[int, int, int, int, int]]) -> None:
    producers, offset = Producers(), 0
    for producer_id, epoch, sequence, delta, timestamp in batches:
        producers.note(producer_id, epoch, sequence, delta, base_offset=offset, timestamp=timestamp)
        offset += delta + 1
    loaded = Producers.from_snapshot(producers.to_snapshot())
    assert state(loaded) == state(producers)
    assert all(len(entry.batches) <= WINDOW for entry in loaded.entries.values())


def test_snapshot_keeps_a_producer_without_batches_and_its_transaction() -> None:
    producers = Producers()
    producers.end(9, 3, coordinator_epoch=5, offset=70, timestamp=1000)
    producers.begin(9, producers.entries[9], 77)
    loaded = Producers.from_snapshot(producers.to_snapshot())
    assert state(loaded) == state(producers)
    assert loaded.open == producers.open == {9: 77}


@moderate
@given(st.lists(produced, min_size=1, max_size=10), st.data())
def test_damaged_snapshot_is_refused(batches: list[tuple[int, int, int, int, int]], data: st.DataObject) -> None:
    producers = Producers()
    for offset, (producer_id, epoch, sequence, delta, timestamp) in enumerate(batches):
        producers.note(producer_id, epoch, sequence, delta, base_offset=offset * 100, timestamp=timestamp)
    snapshot = bytearray(producers.to_snapshot())
    kind = data.draw(st.sampled_from(["flip", "cut"]))
    at = data.draw(st.integers(0, len(snapshot) - 1))
    if kind == "flip":
        snapshot[at] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del snapshot[at:]
    try:
        Producers.from_snapshot(bytes(snapshot))
    except ValueError:
        return
    raise AssertionError("a damaged snapshot was taken for a good one")


@moderate
@given(st.lists(produced, min_size=1, max_size=30))
def test_window_is_the_last_five_batches_of_the_epoch(batches: list[tuple[int, int, int, int, int]]) -> None:
    producers, history, offset = Producers(), {}, 0
    for producer_id, epoch, sequence, delta, timestamp in batches:
        producers.note(producer_id, epoch, sequence, delta, base_offset=offset, timestamp=timestamp)
        if history.get(producer_id, (None,))[0] != epoch:
            history[producer_id] = (epoch, [])
        last_sequence = (sequence + delta) % SEQUENCES
        history[producer_id][1].append(ProducedBatch(sequence, last_sequence, offset, offset + delta))
        offset += delta + 1
    for producer_id, (epoch, noted) in history.items():
        entry = producers.entries[producer_id]
        assert (entry.epoch, entry.batches) == (epoch, noted[-5:])
        assert entry.next_sequence == (noted[-1].last_sequence + 1) % SEQUENCES


# -- epochs -----------------------------------------------------------------------------------------------------------


@moderate
@given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.integers(0, 45), st.integers(0, 45))
def test_epochs_are_those_of_the_records(jumps: list[int], start: int, end: int) -> None:
    """The dumb twin is a list with the epoch of every offset."""
    written, epoch, known = [], 0, LeaderEpochs()
    for offset, jump in enumerate(jumps):
        epoch += jump if jump > 3 else 0
        known.assign(epoch, offset)
        written.append(epoch)
    known = LeaderEpochs.from_text(known.to_text())
    end = min(end, len(written))
    start = min(start, end)
    known.truncate_from_end(end)
    known.truncate_from_start(start)
    for offset in range(start, end):
        assert known.epoch_at(offset) == written[offset]
    kept = written[start:end]
    for asked in range(-1, epoch + 2):
        answer = known.end_offset_for(asked, end)
        if not kept:
            continue
        if asked == -1 or asked > kept[-1]:
            assert answer == (-1, -1)
        elif asked < kept[0]:
            assert answer == (asked, start)
        else:
            found = max(each for each in kept if each <= asked)
            assert answer == (found, start + max(number for number, each in enumerate(kept) if each == found) + 1)
