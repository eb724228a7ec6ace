"""Names and texts from a cluster, made safe for one line of a terminal or a log."""

from __future__ import annotations


def escape_controls(text: str, keep: str = "\n\t") -> str:
    """Return the text with control characters as escapes, so that data cannot control the terminal.

    >>> escape_controls("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    # Terminals act on C0, DEL and C1. Other characters that are not printable, such as special spaces, stay.
    return "".join(
        f"\\x{ord(sign):02x}" if (sign < " " or "\x7f" <= sign <= "\x9f") and sign not in keep else sign
        for sign in text
    )


def shown(name: str) -> str:
    """Return a name or text from the cluster with all control characters as escapes, for one line of a terminal."""
    return escape_controls(name, keep="")
