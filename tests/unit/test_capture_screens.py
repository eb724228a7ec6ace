"""The terminal emulator of tools/capture_screens.py shows what a person would see."""

from __future__ import annotations

import io

from rich.console import Console
from rich.live import Live
from rich.text import Text

from capture_screens import Terminal


def test_live_view_of_rich_is_drawn_in_place() -> None:
    terminal = Terminal(20, 5)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=20, height=5, legacy_windows=False)
    console.print("before")
    with Live(Text("one\ntwo\nthree"), console=console, auto_refresh=False) as live:
        live.update(Text("four\nfive"), refresh=True)
        live.update(Text("six ━━━━\nseven", style="bold red"), refresh=True)
    console.print("after")
    data = stream.getvalue().replace("\n", "\r\n").encode()
    for start in range(0, len(data), 7):
        terminal.feed_bytes(data[start : start + 7])
    assert terminal.show_all() == "before\nsix ━━━━\nseven\nafter"


def test_lines_wrap_at_the_width_and_scroll_at_the_height() -> None:
    terminal = Terminal(4, 2)
    terminal.feed("abcdef\r\ngh\r\n\x1b[1Aij\x1b[K")
    assert terminal.scrolled == ["abcd", "ef"]
    assert terminal.show() == "ij"
