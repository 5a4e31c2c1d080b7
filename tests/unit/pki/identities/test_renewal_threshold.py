"""When a certificate needs renewal, at the edges of its life and of the threshold."""

from __future__ import annotations

import datetime as dt

import pytest

from sluice.pki.authorities.signing import create_root
from sluice.pki.config import PkiConfig
from sluice.pki.identities.renewal_threshold import (
    HALF,
    InvalidThreshold,
    Threshold,
    needs_renewal,
)

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
ROOT = create_root(PkiConfig(root_days=100, backdate_minutes=0), START).certificate


def day(number: float) -> dt.datetime:
    return START + dt.timedelta(days=number)


@pytest.mark.parametrize(
    ("threshold", "at", "due"),
    [
        pytest.param("50%", 49.9, False, id="before-half"),
        pytest.param("50%", 50, True, id="at-half"),
        pytest.param("66%", 65, False, id="step-default-before"),
        pytest.param("66%", 66, True, id="step-default"),
        pytest.param("0%", 0, True, id="always"),
        pytest.param("100%", 99.9, False, id="never-before-the-end"),
        pytest.param("100%", 100.1, True, id="expired"),
        pytest.param("0s", 99.9, False, id="zero-left"),
        pytest.param("0s", 100.1, True, id="zero-left-expired"),
        pytest.param("10d", 89, False, id="eleven-days-left"),
        pytest.param("10d", 91, True, id="nine-days-left"),
        pytest.param("1.5d", 98.4, False, id="fraction-before"),
        pytest.param("1.5d", 98.6, True, id="fraction"),
        pytest.param("300ms", 99.9, False, id="milliseconds"),
        pytest.param("23h60m", 98.9, False, id="compound-before"),
        pytest.param("23h60m", 99.1, True, id="compound"),
    ],
)
def test_renewal_is_due_once_the_threshold_is_reached(threshold: str, at: float, due: bool) -> None:
    assert bool(needs_renewal([ROOT], Threshold.parse(threshold), day(at))) is due


def test_one_due_certificate_of_a_bundle_is_enough_and_is_named() -> None:
    fresh = create_root(PkiConfig(root_days=1000), day(60)).certificate
    assert needs_renewal([fresh], HALF, day(61)) == ""
    assert ROOT.subject.rfc4514_string() in needs_renewal([fresh, ROOT], HALF, day(61))


@pytest.mark.parametrize(
    "text", ["", "%", "101%", "-1%", "5", "1h5", "soon", "1m1h", "1.h", ".5h", "-1h", "1us", "9999999s", "1%%"]
)
def test_a_malformed_threshold_is_refused(text: str) -> None:
    with pytest.raises(InvalidThreshold, match="1h15m"):
        Threshold.parse(text)
