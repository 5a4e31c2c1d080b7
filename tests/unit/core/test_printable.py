"""Untrusted text in logs and on terminals."""

from __future__ import annotations

import pytest

from sluice.core.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("fine, and \xe4 too", "fine, and \xe4 too", id="plain"),
        pytest.param("\x1b[31mred\nline\x00", "?[31mred?line?", id="control characters"),
        pytest.param("\u202ereversed", "?reversed", id="direction of writing"),
    ],
)
def test_control_characters_are_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text, " ") == shown.replace("?", " ")
