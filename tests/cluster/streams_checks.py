"""What Kafka Streams must have written exactly once: a copy of each record, and the counts of its word in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from campaign.report import shorten


def check_copies(sent: Iterable[str], copied: Iterable[str]) -> list[str]:
    """Return a line for each record that has no copy or several, and for each copy of no record."""
    wanted, found = Counter(sent), Counter(copied)
    missing, extra = wanted - found, found - wanted
    return shorten(
        [f"{value!r} was not copied" for value in missing]
        + [f"{value!r} was copied {found[value]} times instead of {wanted[value]}" for value in extra]
    )


def check_counts(sent: Iterable[str], counts: Mapping[str, Sequence[int]]) -> list[str]:
    """Return a line for each word whose counts are not 1, 2, 3 and so on, up to the number of its records."""
    words = Counter(value.split(" ")[0] for value in sent)
    problems = []
    for word in sorted(words.keys() | counts.keys()):
        found = list(counts.get(word, ()))
        if found != list(range(1, words[word] + 1)):
            first = next((n for n, each in enumerate(found, 1) if each != n), len(found) + 1)
            problems.append(f"{word!r} has {words[word]} records and {len(found)} counts; number {first} is wrong")
    return shorten(problems)


def check_state(sent: Iterable[str], state: Mapping[str, int]) -> list[str]:
    """Return a line for each word whose newest value in the changelog is not the number of its records."""
    words = Counter(value.split(" ")[0] for value in sent)
    return shorten([
        f"the changelog has {state.get(word)} for {word!r}, which has {words[word]} records"
        for word in sorted(words.keys() | state.keys())
        if state.get(word) != words[word]
    ])  # fmt: skip
