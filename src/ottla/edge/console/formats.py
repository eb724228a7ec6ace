"""How numbers, sizes, times and names are shown, as filters of the templates."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

#: groups of digits, narrow enough to read as one number
_THIN_SPACE: Final = "\N{THIN SPACE}"
_UNITS: Final = ("B", "KB", "MB", "GB", "TB", "PB")
_LARGE: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_STEPS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
#: what is not known
UNKNOWN: Final = "\N{HORIZONTAL ELLIPSIS}"
_NAME_CHARACTERS: Final = 48


def count(value: float | None) -> str:
    """Return a number with groups of digits.

    >>> count(1234567) == "1\\u2009234\\u2009567", count(None) == "\\u2026"
    (True, True)
    """
    if value is None:
        return UNKNOWN
    return f"{round(value):,}".replace(",", _THIN_SPACE)


def short(value: float | None) -> str:
    """Return a number with three digits and a unit.

    >>> short(950), short(12_345), short(1_200_000), short(0.25), short(3)
    ('950', '12.3 k', '1.2 M', '0.25', '3')
    """
    if value is None:
        return UNKNOWN
    for limit, unit in _LARGE:
        if abs(value) >= limit:
            base = 1000.0 if unit == "k" else limit
            return f"{_digits(value / base)} {unit}"
    return _digits(value) if abs(value) < 1000 else count(value)


def size(value: float | None) -> str:
    """Return a number of bytes with its unit.

    >>> size(0), size(1023), size(1536), size(84 * 1024**3)
    ('0 B', '1023 B', '1.5 KB', '84 GB')
    """
    if value is None:
        return UNKNOWN
    unit = 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{_digits(value) if unit else round(value)} {_UNITS[unit]}"


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def duration(ms: float | None) -> str:
    """Return a duration in its largest unit, with the next one if it is below ten.

    >>> duration(250), duration(1500), duration(41_000), duration(840_000), duration(7_800_000), duration(None)
    ('250 ms', '1.5 s', '41 s', '14 min', '2 h 10 min', '…')
    """
    if ms is None:
        return UNKNOWN
    if ms < 1000:
        return f"{round(ms)} ms"
    if ms < 10_000:
        return f"{ms / 1000:.3g} s"
    for place, (step, unit) in enumerate(_STEPS):
        if ms >= step:
            whole, rest = divmod(int(ms), step)
            if whole >= 10 or place == len(_STEPS) - 1:
                return f"{whole} {unit}"
            below, name = _STEPS[place + 1]
            return f"{whole} {unit} {rest // below} {name}" if rest // below else f"{whole} {unit}"
    return f"{ms / 1000:.0f} s"


def moment(ms: int | None) -> Markup | str:
    """Return a time in UTC that the script shows in the zone of the reader; without a script it stays UTC.

    >>> moment(0)
    Markup('<time datetime="1970-01-01T00:00:00.000Z">1970-01-01 00:00:00.000 UTC</time>')
    """
    if ms is None or ms < 0:
        return UNKNOWN
    try:
        when = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(ms)
    text = when.strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}"
    return Markup('<time datetime="{}Z">{} UTC</time>').format(text.replace(" ", "T"), text)


def middle(name: str) -> Markup | str:
    """Return a long name cut in its middle, because names differ at their ends; the whole name is its title."""
    if len(name) <= _NAME_CHARACTERS:
        return name
    half = (_NAME_CHARACTERS - 1) // 2
    return Markup('<span title="{}">{}\N{HORIZONTAL ELLIPSIS}{}</span>').format(name, name[:half], name[-half:])


def percent(share: float | None) -> str:
    """Return a share of 1 as percent.

    >>> percent(0.504), percent(None)
    ('50 %', '…')
    """
    return UNKNOWN if share is None else f"{share * 100:.0f} %"


def sparkline(values: list[float | None]) -> Markup:
    """Return a small line chart; a value that is not known leaves a gap. The highest value is at the top, 0 below."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return Markup("")
    top = max(known) or 1.0
    step = 100 / (len(values) - 1)
    parts, is_open = [], False
    for place, value in enumerate(values):
        if value is None:
            is_open = False
            continue
        parts.append(f"{'L' if is_open else 'M'}{place * step:.1f} {20 - 18 * max(value, 0) / top:.1f}")
        is_open = True
    text = f"between {short(min(known))} and {short(max(known))}"
    return Markup(
        '<svg class="spark" viewBox="0 0 100 21" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<path d="{}" vector-effect="non-scaling-stroke"/></svg>'
    ).format(text, " ".join(parts))


FILTERS: Final = {
    "count": count, "short": short, "size": size, "duration": duration, "moment": moment, "middle": middle,
    "percent": percent, "sparkline": sparkline,
}  # fmt: skip
