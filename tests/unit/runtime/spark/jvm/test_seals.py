"""Whether a job seals its shuffles, by configuration and by what the CPU can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.runtime.messages import Seal
from sluice.runtime.spark.jvm.sealing import seals

X86 = "processor : 0\nflags\t\t: fpu sse2 aes pclmulqdq avx\nprocessor : 1\nflags\t\t: fpu aes pclmulqdq\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd aes pmull sha1\n"


@pytest.mark.parametrize(
    ("seal", "cpu", "expected"),
    [
        pytest.param("auto", X86, True, id="x86"),
        pytest.param("auto", ARM, True, id="arm"),
        pytest.param("auto", X86.replace("aes", "", 1), False, id="one-core-without"),
        pytest.param("auto", X86.replace("pclmulqdq", ""), False, id="without-multiplication"),
        pytest.param("auto", "model name : aes pclmulqdq\n", False, id="nothing-known"),
        pytest.param(True, "", True, id="on"),
        pytest.param(False, X86, False, id="off"),
    ],
)
def test_sealing_depends_on_the_setting_and_the_cpu(tmp_path: Path, seal: Seal, cpu: str, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(cpu)
    assert seals(seal, tmp_path / "cpuinfo") is expected


def test_without_cpuinfo_a_job_does_not_seal_automatically(tmp_path: Path) -> None:
    assert not seals("auto", tmp_path / "cpuinfo")
