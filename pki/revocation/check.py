"""Checks whether a certificate was revoked, according to given CRLs. No I/O.

A path without a CRL is reported as "not checked", not as "good".
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cryptography import x509

from sluice.core import CertificateRejected, CrlRejected
from sluice.pki.revocation.crl import RevocationList
from sluice.pki.revocation.crl_files import take_newer


class CertificateRevoked(CertificateRejected):
    """A certificate of the path is on its issuer's revocation list."""


@dataclass(frozen=True, slots=True)
class ListUsed:
    """A revocation list that was consulted."""

    issuer: str
    number: int
    this_update: dt.datetime
    next_update: dt.datetime


@dataclass(frozen=True, slots=True)
class RevocationCheck:
    """The result for a path without revoked certificates.

    ``lists`` are the consulted CRLs; ``unchecked`` names the certificates without a CRL, and why. ``by_home``: the
    record of the home whose authority signed the leaf was consulted.
    """

    lists: tuple[ListUsed, ...]
    unchecked: tuple[str, ...]
    by_home: bool = False

    @property
    def complete(self) -> bool:
        """Whether every certificate below the anchor was looked up."""
        return not self.unchecked

    def known_to_the_home(self, leaf: x509.Certificate) -> RevocationCheck:
        """This result after consulting the record of the home that signed ``leaf``, which needs no CRL."""
        own = f"{leaf.subject.rfc4514_string()}: "
        rest = tuple(line for line in self.unchecked if not line.startswith(own))
        return RevocationCheck(self.lists, rest, by_home=True)


def check_path(
    path: Sequence[x509.Certificate], offered: Iterable[x509.CertificateRevocationList], now: dt.datetime
) -> RevocationCheck:
    """Check every certificate of ``path`` (the leaf first, an anchor last) except the anchor.

    Args:
        path: verified: each is signed by the next.
        offered: CRLs and delta CRLs of any issuers.
        now: with time zone.

    Raises:
        CertificateRevoked: one of them is revoked.
    """
    crls = list(offered)
    used: list[ListUsed] = []
    unchecked: list[str] = []
    for certificate, issuer in itertools.pairwise(path):
        found, why = _list_of(issuer, crls, now)
        if found is None:
            unchecked.append(f"{certificate.subject.rfc4514_string()}: {why}")
            continue
        entry = found.revoked.get(certificate.serial_number)
        if entry is not None:
            raise CertificateRevoked(
                f"certificate {certificate.subject.rfc4514_string()!r}, serial {certificate.serial_number:x}, "
                f"was revoked at {entry.revoked_at:%Y-%m-%d %H:%M:%S} UTC ({entry.reason})",
                "issue another one: sluice pki issue",
            )
        used.append(
            ListUsed(found.issuer.rfc4514_string(), found.number, found.this_update, found.next_update),
        )
    return RevocationCheck(tuple(used), tuple(unchecked))


def _list_of(
    issuer: x509.Certificate, crls: Sequence[x509.CertificateRevocationList], now: dt.datetime
) -> tuple[RevocationList | None, str]:
    """The newest valid CRL of ``issuer``, or why there is none."""
    mine = [each for each in crls if each.issuer == issuer.subject]
    lists, refused = take_newer({}, mine, (issuer,), now)
    found = next(iter(lists.values()), None)
    if found is not None:
        return found, ""
    name = issuer.subject.rfc4514_string()
    return None, _why(refused) or f"there is no revocation list of {name}"


def _why(refused: Sequence[CrlRejected]) -> str:
    return "; ".join(dict.fromkeys(error.what for error in refused))
