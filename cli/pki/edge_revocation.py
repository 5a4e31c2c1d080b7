"""Revokes user certificates at the gateway too, so that open connections end.

CRLs only apply to handshakes. The gateway needs a certificate's fingerprint, from the identity's directory or the
ledger.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sluice.cli.errors import RefusedError
from sluice.core import Home, SluiceError
from sluice.gateway.credentials import FOREVER, Revocations
from sluice.pki.assertions import CertificateId
from sluice.pki.ca import fingerprints
from sluice.pki.revocation import RevocationTarget


def end_at_the_gateway(home: Home, targets: Iterable[RevocationTarget], directory: Path | None = None) -> None:
    """Add the certificates of ``targets`` to the gateway's set of revoked ids; ``directory`` may hold one of them."""
    wanted = {target.serial: target for target in targets}
    if not wanted:
        return
    revocations = Revocations.of(home)
    try:
        known = {(target.serial, target.sha256) for target in wanted.values() if target.sha256}
        for serial, fingerprint in known | set(fingerprints(home, directory)):
            if (target := wanted.get(serial)) is not None:
                end = target.not_after
                revocations.revoke(
                    ("certificate", CertificateId(fingerprint)), until=FOREVER if end is None else end.timestamp()
                )
    except SluiceError as error:
        raise RefusedError(
            f"revoked, but not yet on open connections to the gateway: {error}", "`sluice user lock NAME` ends those"
        ) from error
