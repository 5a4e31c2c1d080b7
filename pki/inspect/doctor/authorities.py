"""The home's authorities, their revocation lists, and the ledger. Decisions only."""

from __future__ import annotations

import contextlib
import datetime as dt
import shlex
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509

from sluice.core import CrlRejected, PkiError
from sluice.pki.authorities import CERTIFICATE_FILE, ENCRYPTED, KEY_FILE
from sluice.pki.ca import Refusal
from sluice.pki.inspect.chain_findings import certificate_findings
from sluice.pki.inspect.doctor.facts import AuthorityFact, HomeFacts, IdentityFact, ListFact
from sluice.pki.inspect.doctor.identities import OVERDUE_SHARE
from sluice.pki.inspect.findings import Finding
from sluice.pki.revocation import load_crls, take_newer
from sluice.pki.x509 import DAMAGED, AuthorityKind, key_from_pem, same_public_key, was_issued_by

SOON = dt.timedelta(days=30)
"""Notice before an authority ends; a quarter of its life when that is shorter."""
_FOREVER = dt.timedelta(days=36500)
_RESTORE = "restore it from a copy"
_UNUSABLE = "nothing can be issued or renewed with this authority"
_REFRESH = "sluice pki crl refresh"


def parse_authority(fact: AuthorityFact) -> x509.Certificate | None:
    """The certificate; None when it is missing or damaged."""
    try:
        found = x509.load_pem_x509_certificates(fact.certificate_pem or b"")
    except DAMAGED:
        return None
    return found[0] if len(found) == 1 else None


def parse_bundles(bundles: Sequence[bytes]) -> list[x509.Certificate]:
    """All certificates in the bundles; damaged bundles are skipped."""
    found: list[x509.Certificate] = []
    for pem in bundles:
        with contextlib.suppress(*DAMAGED):
            found += x509.load_pem_x509_certificates(pem)
    return found


def authority_findings(facts: Sequence[AuthorityFact], now: dt.datetime) -> list[Finding]:
    """Certificates and keys of the authorities of one home."""
    parsed = {fact.kind: parse_authority(fact) for fact in facts}
    root = parsed.get(AuthorityKind.ROOT)
    findings: list[Finding] = []
    for fact in facts:
        certificate = parsed[fact.kind]
        path = fact.directory / CERTIFICATE_FILE
        if certificate is None:
            findings.append(_error("damaged", path, "it holds no readable certificate", _UNUSABLE))
            continue
        findings += certificate_findings(certificate, str(path), now) or _ends_soon(certificate, path, now)
        if root is not None and not was_issued_by(certificate, root):
            why = "an authority of another root is in its place"
            findings.append(_error("chain-does-not-verify", path, "it was not signed by the root beside it", why))
        if fact.key_pem is not None:
            findings += _key_findings(fact, certificate)
    return findings


def _key_findings(fact: AuthorityFact, certificate: x509.Certificate) -> list[Finding]:
    path, pem = fact.directory / KEY_FILE, fact.key_pem or b""
    if ENCRYPTED in pem:
        return []
    try:
        key = key_from_pem(pem, str(path))
    except PkiError as error:
        return [_error("damaged", path, error.what, _UNUSABLE)]
    if not same_public_key(certificate.public_key(), key.public_key()):
        return [_error("key-mismatch", path, f"it is not the key of {fact.directory / CERTIFICATE_FILE}", _UNUSABLE)]
    if fact.kind is not AuthorityKind.ROOT:
        return []  # these sign unattended, so nobody can type a passphrase
    return [
        Finding.note(
            "root-key-plain",
            str(path),
            "the root's key lies here without a passphrase",
            why="it is needed only to make an authority; whoever has it can make authorities for ten years",
            remedy=f"openssl pkcs8 -topk8 -v2 aes-256-cbc -iter 600000 -in {shlex.quote(str(path))} "
            "-out root-key.pem; keep that offline",
        )
    ]


def _ends_soon(certificate: x509.Certificate, path: Path, now: dt.datetime) -> list[Finding]:
    end = certificate.not_valid_after_utc
    if end - now > min(SOON, (end - certificate.not_valid_before_utc) / 4):
        return []
    return [
        Finding.warning(
            "authority-ends-soon",
            str(path),
            f"this authority ends at {end:%Y-%m-%d %H:%M} UTC",
            why="no certificate that it signs lives longer, and all of them end with it",
            remedy="replace it: see docs/howto/rotate-authorities.md",
        )
    ]


def list_findings(home: HomeFacts, authorities: Sequence[x509.Certificate], now: dt.datetime) -> list[Finding]:
    """The lists that the authorities have signed, and the copies in identity directories."""
    # A list whose authority was replaced is useless and harmless.
    names = {each.subject for each in authorities}
    findings = [
        found
        for each in home.lists
        if _issuer(each.pem) is None or _issuer(each.pem) in names
        for found in _list(each, authorities, now, running=home.running)
    ]
    for identity in home.identities:
        if identity.crl_pem is not None and identity.ca_pem is not None:
            findings += _copy(identity, now, running=home.running)
    return findings


def _issuer(pem: bytes) -> x509.Name | None:
    try:
        return load_crls(pem)[0].issuer
    except CrlRejected:
        return None


def _copy(identity: IdentityFact, now: dt.datetime, *, running: bool) -> list[Finding]:
    try:
        anchors = x509.load_pem_x509_certificates(identity.ca_pem or b"")
    except DAMAGED:
        return []  # reported for the identity itself
    return _list(ListFact(identity.directory / "crl.pem", identity.crl_pem or b""), anchors, now, running=running)


def _list(fact: ListFact, authorities: Sequence[x509.Certificate], now: dt.datetime, *, running: bool) -> list[Finding]:
    try:
        checked, refused = take_newer({}, load_crls(fact.pem), authorities, now, grace=_FOREVER)
        if refused:
            raise refused[0]
    except CrlRejected as error:
        why = "a process that starts with it stops; a running one keeps the previous list"
        return [_error("list-bad", fact.path, error.what, why, _REFRESH)]
    findings = []
    for each in checked.values():
        life = each.next_update - each.this_update
        if now > each.next_update:
            why = "soon after, all certificates of its authority are refused"
            ended = f"list number {each.number} ended at {each.next_update:%Y-%m-%d %H:%M} UTC"
            findings.append(_error("list-expired", fact.path, ended, why, _REFRESH))
        elif running and now > each.this_update + life * OVERDUE_SHARE:
            findings.append(
                Finding.warning(
                    "list-not-renewed",
                    str(fact.path),
                    f"list number {each.number} is past {OVERDUE_SHARE:.0%} of its life",
                    why="the cluster runs and should have signed the next one at half",
                    remedy=_REFRESH,
                )
            )
    return findings


def ledger_findings(path: Path | None, error: str) -> list[Finding]:
    """The ledger's chain, when reading it ended with ``error``."""
    if path is None or not error:
        return []
    why = "it is unknown what was issued, and the online authority does not start"
    return [_error("ledger-broken", path, error, why, "restore it from a copy, then: sluice pki ledger verify")]


def refusal_findings(refusals: Sequence[Refusal], ledger: Path | None) -> list[Finding]:
    """Superseded certificates that were shown for renewal."""
    why = "a stolen key renews itself like this, and so does the one it was stolen from: see docs/howto/stolen-key.md"
    return [
        _error(
            "superseded-shown",
            Path() if ledger is None else ledger,
            each.describe(),
            why,
            f"find out who has it; then sluice pki revoke {each.serial} --authority {each.authority} --reason "
            "superseded, when it was a harmless copy, or else sluice pki revoke "
            f"{each.identity} --reason key-compromise",
        )
        for each in refusals
    ]


def _error(code: str, path: Path, what: str, why: str, remedy: str = _RESTORE) -> Finding:
    return Finding.error(code, str(path), what, why=why, remedy=remedy)
