"""Thresholds of ``sluice pki needs-renewal``, as in ``step certificate needs-renewal``. No I/O.

Source: https://smallstep.com/docs/step-cli/reference/certificate/needs-renewal
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from cryptography import x509

from sluice.core import PkiError

_PERCENT = re.compile(r"([0-9]{1,3})%")
_NUMBER = r"([0-9]{1,6}(?:\.[0-9]{1,9})?)"
_DURATION = re.compile(rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?")
"""Durations in Go's syntax (``step`` is a Go program), without signs and units below a millisecond, plus days."""


class InvalidThreshold(PkiError):
    """A threshold that is neither a share nor a time."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """Due when ``percent`` of a life is over or, when that is None, when less than ``left`` of it is left."""

    percent: int | None = None
    left: dt.timedelta = dt.timedelta()

    @classmethod
    def parse(cls, text: str) -> Self:
        """``75%`` of its life over, or ``1h15m`` (also d, s, ms, fractions) left; else :class:`InvalidThreshold`."""
        if (share := _PERCENT.fullmatch(text)) and int(share.group(1)) <= 100:
            return cls(percent=int(share.group(1)))
        if text and (time := _DURATION.fullmatch(text)):
            days, hours, minutes, seconds, milliseconds = (float(part or 0) for part in time.groups())
            return cls(
                left=dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
            )
        raise InvalidThreshold(f"{text[:40]!r} is not a threshold", "write a share, 0% to 100%, or a time, as in 1h15m")


HALF = Threshold(percent=50)
"""When Sluice renews (``step`` itself waits for 66 %)."""


def needs_renewal(certificates: Sequence[x509.Certificate], threshold: Threshold, now: dt.datetime) -> str:
    """The reason for the first of ``certificates`` that is due at ``now``; empty: none is due."""
    return next(filter(None, (_due(certificate, threshold, now) for certificate in certificates)), "")


def _due(certificate: x509.Certificate, threshold: Threshold, now: dt.datetime) -> str:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    what = f"{certificate.subject.rfc4514_string()}, which ends at {end:%Y-%m-%d %H:%M:%S} UTC"
    if now > end:
        return f"{what}, expired"
    if threshold.percent is not None:
        over = now >= start + (end - start) * threshold.percent / 100
        return f"{what}, is past {threshold.percent}% of its life" if over else ""
    return f"{what}, has less than {threshold.left} left" if end - now < threshold.left else ""
