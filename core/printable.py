"""Makes text that others have chosen safe for a log or a terminal."""

from __future__ import annotations

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(text: str, instead: str = "?") -> str:
    """``text`` with ``instead`` for each control character: they could act on a terminal, or forge lines of a log."""
    return text if text.isprintable() else "".join(each if each.isprintable() else instead for each in text)
