"""Hints that are given when the kernel has refused something because of a limit."""

from __future__ import annotations

import pytest

from sluice.runtime.sandbox import Limits, hint

LIMITS = Limits(processes=64, open_files=256, disk_mb=50, tmp_mb=40)


@pytest.mark.parametrize(
    ("error", "setting"),
    [
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", "hold 40 MiB each; raise tmp_mb"),
        ("OSError: [Errno 24] Too many open files: 'x'", "256 open files; raise max_open_files"),
        ("OSError: [Errno 27] File too large", "50 MiB; raise disk_mb"),
        (
            "BlockingIOError: [Errno 11] Resource temporarily unavailable",
            "64 processes and threads; raise max_processes",
        ),
        ("RuntimeError: can't start new thread", "64 processes and threads; raise max_processes"),
        ("java.lang.OutOfMemoryError: unable to create native thread: possibly …", "raise max_processes"),
    ],
)
def test_a_refusal_names_limit_and_setting(error: str, setting: str) -> None:
    assert setting in hint(error, LIMITS)
    assert not hint(error, Limits())


def test_other_errors_get_no_hint() -> None:
    assert not hint("ValueError: there is no space", LIMITS)
