"""Checks whether an identity directory is complete, current, and of this home. No I/O.

One cause is one finding: the first problem hides its consequences.
"""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Collection

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

from sluice.core import PkiError
from sluice.pki.identities import CA_FILE, CHAIN_FILE, KEY_FILE, KEYSTORE_FILE, IdentityMaterial, parse_identity
from sluice.pki.inspect.chain_findings import certificate_findings, chain_findings, spiffe_findings
from sluice.pki.inspect.doctor.facts import IdentityFact
from sluice.pki.inspect.findings import Finding, Severity
from sluice.pki.x509 import DAMAGED, describe, key_from_pem, same_public_key, verify_chain

_ISSUE = "sluice pki issue, or `sluice pki enrol` at an online authority"

OVERDUE_SHARE = 0.6
"""Renewal begins at half of a life; past this share, it does not work."""
CLOCK_TOLERANCE = dt.timedelta(minutes=5)
"""Tolerated difference of clocks; certificates are backdated by this."""


def identity_findings(
    fact: IdentityFact, authorities: Collection[x509.Certificate], now: dt.datetime, *, running: bool
) -> list[Finding]:
    """All findings about one directory.

    Args:
        fact: what is in it.
        authorities: those of the home; empty on a node that enrolled, where none counts as foreign.
        now: with time zone.
        running: processes of the home run, so that renewal should work.
    """
    if fact.key_pem is not None and fact.chain_pem is None:
        return [_orphaned_key(fact)]
    parsed = _leaf_of(fact)
    if fact.job and _is_over(parsed, now, running=running):
        return [_orphaned_job(fact, running=running)]
    material, broken = _material(fact, parsed)
    if material is None:
        return broken
    where = str(fact.directory / CHAIN_FILE)
    chain = [material.leaf, *material.chain]
    findings = certificate_findings(material.leaf, where, now) + chain_findings(chain, where)
    findings += _foreign(fact, material, authorities)
    if not findings:
        findings = _unverified(fact, material, now)
    if not findings and running:
        findings = _overdue(fact, material, now)
    return findings + _keystore(fact, material) + _clock(fact, material, now)


def _leaf_of(fact: IdentityFact) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificates(fact.chain_pem or b"")[0]
    except DAMAGED:
        return None


def _orphaned_key(fact: IdentityFact) -> Finding:
    return Finding.warning(
        "orphaned-key",
        str(fact.directory / KEY_FILE),
        f"there is a key and no {CHAIN_FILE} beside it",
        why="no process can use it, but it looks usable",
        remedy=f"rm -r {shlex.quote(str(fact.directory))}, or have it certified: sluice pki issue --csr",
    )


def _is_over(leaf: x509.Certificate | None, now: dt.datetime, *, running: bool) -> bool:
    """Whether a job is over: its cluster is down, or nobody renews its identity any more."""
    return not running or leaf is None or now > leaf.not_valid_after_utc


def _orphaned_job(fact: IdentityFact, *, running: bool) -> Finding:
    return Finding.warning(
        "orphaned-job",
        str(fact.directory),
        "the identity of a job that is over" if running else "the identity of a job, and no cluster runs here",
        why="its key should have gone with the job",
        remedy=f"rm -r {shlex.quote(str(fact.directory))}",
    )


def _material(fact: IdentityFact, leaf: x509.Certificate | None) -> tuple[IdentityMaterial | None, list[Finding]]:
    where = str(fact.directory)
    files = {KEY_FILE: fact.key_pem, CHAIN_FILE: fact.chain_pem, CA_FILE: fact.ca_pem}
    if missing := [name for name, data in files.items() if data is None]:
        return None, [_damaged(where, f"there is no {' and no '.join(missing)} in {where}")]
    try:
        return parse_identity(fact.key_pem or b"", fact.chain_pem or b"", fact.ca_pem or b"", where), []
    except PkiError as error:
        if leaf is not None and _is_of_another_key(fact, leaf):
            return None, [_mismatch(fact)]
        if leaf is not None and (broken := spiffe_findings(leaf, str(fact.directory / CHAIN_FILE))):
            # Here even a leaf without any URI name is an error, not only a note.
            return None, [
                msgspec.structs.replace(broken[0], severity=Severity.ERROR, code="spiffe-rules", remedy=_ISSUE)
            ]
        return None, [_damaged(where, error.what)]


def _damaged(where: str, what: str) -> Finding:
    return Finding.error("damaged", where, what, why="no process can start with this identity", remedy=_ISSUE)


def _mismatch(fact: IdentityFact) -> Finding:
    return Finding.error(
        "key-mismatch",
        str(fact.directory / KEY_FILE),
        f"it is not the key of {fact.directory / CHAIN_FILE}",
        why="a writer died between two files, or they were copied from two places; no process starts",
        remedy=_ISSUE,
    )


def _is_of_another_key(fact: IdentityFact, leaf: x509.Certificate) -> bool:
    try:
        key = key_from_pem(fact.key_pem or b"", KEY_FILE)
        return not same_public_key(key.public_key(), leaf.public_key())
    except (PkiError, *DAMAGED):
        return False


def _foreign(
    fact: IdentityFact, material: IdentityMaterial, authorities: Collection[x509.Certificate]
) -> list[Finding]:
    foreign = [each for each in dict.fromkeys((*material.anchors, *material.chain)) if each not in authorities]
    if not authorities or not foreign:
        return []
    return [
        Finding.warning(
            "foreign-authority",
            str(fact.directory),
            f"{', '.join(describe(each) for each in foreign)} is not an authority of this home",
            why="it was copied here, or the home's authorities were replaced: its peers here do not accept it",
            remedy="sluice pki issue, or move the directory to where it belongs",
        )
    ]


def _unverified(fact: IdentityFact, material: IdentityMaterial, now: dt.datetime) -> list[Finding]:
    try:
        verify_chain(material.leaf, material.chain, material.anchors, now=now)
    except PkiError as error:
        return [
            Finding.error(
                "chain-does-not-verify",
                str(fact.directory / CHAIN_FILE),
                error.what,
                why=f"peers that trust {CA_FILE} refuse this identity",
                remedy="sluice pki issue",
            )
        ]
    return []


def _overdue(fact: IdentityFact, material: IdentityMaterial, now: dt.datetime) -> list[Finding]:
    start, end = material.leaf.not_valid_before_utc, material.leaf.not_valid_after_utc
    if now < start + (end - start) * OVERDUE_SHARE:
        return []
    return [
        Finding.warning(
            "not-renewed",
            str(fact.directory / CHAIN_FILE),
            f"more than {OVERDUE_SHARE:.0%} of its life, which ends at {end:%Y-%m-%d %H:%M} UTC, is over",
            why="the cluster runs and should have renewed it at half; its log says why it could not",
            remedy="sluice pki renew",
        )
    ]


def _keystore(fact: IdentityFact, material: IdentityMaterial) -> list[Finding]:
    if fact.keystore is None:
        return []
    path = str(fact.directory / KEYSTORE_FILE)
    remedy = "sluice pki renew --force"
    try:
        opened = load_pkcs12(fact.keystore, (fact.password or b"").strip())
    except DAMAGED:
        return [
            Finding.error(
                "keystore-password",
                path,
                f"{path}.pass does not open it" if fact.password is not None else f"there is no {path}.pass",
                why="a Java program that is given both does not start",
                remedy=remedy,
            )
        ]
    if opened.cert is not None and opened.cert.certificate == material.leaf:
        return []
    return [
        Finding.warning(
            "keystore-stale",
            path,
            f"it holds another certificate than {CHAIN_FILE}",
            why="a writer died between two files: Java programs present one identity, all others another",
            remedy=remedy,
        )
    ]


def _clock(fact: IdentityFact, material: IdentityMaterial, now: dt.datetime) -> list[Finding]:
    start, written = material.leaf.not_valid_before_utc, fact.written_at
    if written is None or start > now:  # the latter is reported as not-yet-valid
        return []
    if written > now + CLOCK_TOLERANCE:
        what = f"it was written at {written:%Y-%m-%d %H:%M:%S} UTC, which is in the future"
    elif written < start - CLOCK_TOLERANCE:
        what = f"it was written at {written:%Y-%m-%d %H:%M:%S} UTC, before its certificate began"
    else:
        return []
    return [
        Finding.warning(
            "clock-skew",
            str(fact.directory / CHAIN_FILE),
            what,
            why="this machine's clock was changed, or it and its authority's differ: expiry cannot be relied on",
            remedy="timedatectl status",
        )
    ]
