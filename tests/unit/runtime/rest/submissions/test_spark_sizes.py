"""Memory sizes in the notation of Spark's clients."""

from __future__ import annotations

import pytest

from sluice.runtime.rest.submissions.spark_sizes import mebibytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("512m", 512), ("4g", 4096), ("4GB", 4096), ("1t", 1 << 20), ("2048k", 2), ("2047kb", 1), (" 1024 ", 1024)],
)
def test_spark_memory_sizes_are_parsed_to_mebibytes(text: str, size: int) -> None:
    assert mebibytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "g", "0", "0g", "-1g", "1.5g", "1023k", "4x", "4 g", "9" * 12 + "t", "٤g", "1" * 99]
)
def test_a_malformed_memory_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="memory size"):
        mebibytes(text)
