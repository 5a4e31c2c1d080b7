"""Builds notification events: what happened, in words, and what to do about it. Pure functions.

Names of jobs and users come from tenants. Only a bounded, single-line form of them is shown, which cannot be markup, a
mention or a URL in mail and chat. The same holds for text from processes, as one of them may be compromised. Error
messages of jobs are not shown at all: they may contain data of the job.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from sluice.core import SluiceError, rfc3339
from sluice.pki import SpiffeId
from sluice.pki.ca import Refusal
from sluice.runtime.notify.kinds import Kind

MAX_NAME_CHARACTERS = 80
MAX_TEXT_CHARACTERS = 400
MAX_TIME = 253402300800.0
"""The year 10000, in seconds since the epoch."""
RENEWAL_LATE = 0.25
"""Share of a certificate's lifetime left below which its renewal is overdue: processes renew at half of it."""
AUTHORITY_SOON = dt.timedelta(days=30)
"""When to warn of an authority's end, as in ``sluice pki doctor``; for short-lived ones, the last quarter."""
NOT_AFTER, NOT_BEFORE = "sluice_identity_not_after_seconds", "sluice_identity_not_before_seconds"

_NO_NAME = re.compile(r"[^\w .+:=,@()-]|(?<![A-Za-z0-9])@")
_NO_TEXT = re.compile(r"[^\w .+:=,@()'\"/;%-]|(?<![A-Za-z0-9])@|(?<!spiffe):(?=//)")
_PROCESS = re.compile(r"[a-z-]{1,40}/[A-Za-z0-9._-]{1,64}")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event or condition that people should know about.

    Attributes:
        kind: a :class:`Kind`, or ``test``.
        key: deduplication key: the same for the same event.
        subject: what it concerns: an ID, an identity, a name.
        what: a sentence that describes it.
        action: what to do.
        at: when it happened, in seconds since the epoch.
        once: True for a one-time event, which is sent once; False for a condition, which holds as long as it is seen.
    """

    kind: str
    key: str
    subject: str
    what: str
    action: str
    at: float
    once: bool = False


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate that a process presents, from its metrics; ``not_before`` is 0 when they do not have it."""

    identity: str
    process: str
    not_after: float
    not_before: float = 0.0


def job_failed(job_id: str, name: str, owner: str, ended: float) -> Event:
    """The event for a job that has failed for good."""
    return Event(
        kind=Kind.JOB_FAILED,
        key=_key(Kind.JOB_FAILED, job_id),
        subject=job_id,
        what=f'Job "{safe_name(name)}" of {safe_name(owner)} failed.',
        action=f"See why: sluice jobs show {job_id}; sluice jobs logs {job_id}",
        at=ended,
        once=True,
    )


def certificate_not_renewed(certificate: Certificate, now: float) -> Event | None:
    """The event for a certificate whose renewal is overdue; None when it is not."""
    life = certificate.not_after - certificate.not_before
    late = RENEWAL_LATE * life if certificate.not_before else 3600.0
    if certificate.not_after - now > late:
        return None
    process = safe_text(certificate.process)
    ended = "ended" if certificate.not_after <= now else "ends"
    return Event(
        kind=Kind.CERTIFICATE_NOT_RENEWED,
        key=_key(Kind.CERTIFICATE_NOT_RENEWED, certificate.identity, f"{certificate.not_after:.0f}"),
        subject=safe_text(certificate.identity),
        what=f"The certificate of {process} {ended} at {_minute(certificate.not_after)} and was not renewed.",
        action="Check that the authority runs (sluice status), read the log of the process, and run: sluice pki doctor",
        at=now,
    )


def authority_near_its_end(kind: str, authority: x509.Certificate, now: float) -> Event | None:
    """The event for a signing authority that expires soon; None when it does not."""
    start, end = authority.not_valid_before_utc.timestamp(), authority.not_valid_after_utc.timestamp()
    if end - now > min(AUTHORITY_SOON.total_seconds(), (end - start) / 4):
        return None
    serial = f"{authority.serial_number:x}"
    ended = "ended" if end <= now else "ends"
    return Event(
        kind=Kind.AUTHORITY_ENDS,
        key=_key(Kind.AUTHORITY_ENDS, serial, f"{end:.0f}"),
        subject=f"{kind} authority {serial}",
        what=f"The {kind} authority {ended} at {_minute(end)}. No certificate that it signs is valid longer.",
        action="Replace it while jobs run: docs/howto/rotate-authorities.md (a root: docs/howto/lost-root.md)",
        at=now,
    )


def worker_excluded(worker: str, reason: str, now: float) -> Event:
    """The event for a ShuffleWorker that gets no new data."""
    return Event(
        kind=Kind.WORKER_EXCLUDED,
        key=_key(Kind.WORKER_EXCLUDED, worker),
        subject=safe_text(worker),
        what=f"ShuffleWorker {safe_text(worker)} is excluded and gets no new data: {safe_text(reason)}.",
        action=f"See sluice shuffle status, and its log; to remove it: sluice shuffle drain {safe_text(worker)}",
        at=now,
    )


def audit_finding(findings: Mapping[str, int], at: float) -> Event | None:
    """The event for the findings of the last audit, counted by severity; None when there are none."""
    counts = ", ".join(f"{count} {safe_text(severity)}" for severity, count in sorted(findings.items()) if count > 0)
    if not counts:
        return None
    return Event(
        kind=Kind.AUDIT_FINDING,
        key=_key(Kind.AUDIT_FINDING, counts),
        subject="sluice audit",
        what=f"The audit of {_minute(at)} has findings: {counts}.",
        action="For each finding and its remedy, run: sluice audit",
        at=at,
    )


def superseded_renewal(refusal: Refusal) -> Event:
    """The event for a refused renewal of a certificate that is not the newest of its identity."""
    return Event(
        kind=Kind.SUPERSEDED_RENEWAL,
        key=_key(Kind.SUPERSEDED_RENEWAL, refusal.identity, refusal.serial),
        subject=safe_text(refusal.identity),
        what=safe_text(f"{refusal.describe()}. One of the holders may be a thief."),
        action="Find out which: sluice pki doctor; then docs/howto/stolen-key.md, A superseded certificate was shown",
        at=refusal.last.timestamp(),
    )


def sample_event(now: float) -> Event:
    """The event that ``sluice notify test`` sends."""
    return Event(
        kind="test",
        key=_key("test", f"{now:.3f}"),
        subject="test",
        what="This is a test. Nothing happened.",
        action="No action is needed: notifications arrive here.",
        at=now,
        once=True,
    )


def certificates_in(metrics: str) -> Iterator[Certificate]:
    """Yield the certificates in the processes' metrics, skipping invalid ones."""
    wanted = "\n".join(line for line in metrics.splitlines() if line.startswith((f"{NOT_AFTER}{{", f"{NOT_BEFORE}{{")))
    found: dict[tuple[str, str], dict[str, float]] = {}
    try:
        for family in text_string_to_metric_families(wanted + "\n"):
            for sample in family.samples:
                key = (sample.labels.get("identity", ""), sample.labels.get("process", ""))
                found.setdefault(key, {})[sample.name] = sample.value
    except (ValueError, KeyError, IndexError):
        return
    for (identity, process), values in found.items():
        # A compromised machine can write any metrics.
        times = (values.get(NOT_AFTER, math.nan), values.get(NOT_BEFORE, 0.0))
        if _is_process(identity) and _PROCESS.fullmatch(process) and all(0 <= each < MAX_TIME for each in times):
            yield Certificate(identity, process, *times)


def _is_process(identity: str) -> bool:
    try:
        SpiffeId.parse(identity)
    except SluiceError:
        return False
    return True


def safe_name(name: str) -> str:
    """Sanitize a name chosen by a tenant: letters, digits and little else, so no markup, mention or URL."""
    return _NO_NAME.sub("?", _bounded(name, MAX_NAME_CHARACTERS)) or "?"


def safe_text(text: str) -> str:
    """Sanitize text from our own processes, one of which may be compromised: a single line without markup."""
    return _NO_TEXT.sub("?", _bounded(text, MAX_TEXT_CHARACTERS))


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def _minute(at: float) -> str:
    return rfc3339(dt.datetime.fromtimestamp(at, dt.UTC).replace(second=0, microsecond=0))
