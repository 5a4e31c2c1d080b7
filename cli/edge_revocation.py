"""A user's certificate that was revoked also ends at the gateway, on connections that are open already.

The revocation list counts in handshakes. The gateway knows a certificate by its fingerprint, which the identity's
directory tells, or else the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from cryptography.hazmat.primitives import hashes

from cli.errors import RefusedError
from gateway.revocations import FOREVER, Revocations
from pki.ca.ledger_file import ledger_path, read_ledger
from pki.crl_files import identity_directories
from pki.errors import SluiceError
from pki.home import Home
from pki.identity_files import CHAIN_FILE, previous_certificates, read_certificates
from pki.revocation_store import Target


def end_at_the_gateway(home: Home, targets: Iterable[Target], directory: Path | None = None) -> None:
    """Add the certificates of ``targets`` to the gateway's set of revoked ids; ``directory`` may hold one of them."""
    wanted = {target.serial: target for target in targets}
    if not wanted:
        return
    revocations = Revocations.of(home)
    try:
        for serial, fingerprint in set(_known(home, directory)):
            if (target := wanted.get(serial)) is not None:
                end = target.not_after
                revocations.revoke("certificate", fingerprint, until=FOREVER if end is None else end.timestamp())
    except SluiceError as error:
        raise RefusedError(
            f"revoked, but not yet on open connections to the gateway: {error}", "`sluice user lock NAME` ends those"
        ) from error


def _known(home: Home, directory: Path | None) -> Iterator[tuple[int, str]]:
    """Serial number and fingerprint of every certificate that can be found here."""
    for each in {*identity_directories(home), *([] if directory is None else [directory])}:
        for certificate in (*read_certificates(each / CHAIN_FILE)[:1], *previous_certificates(each)):
            yield certificate.serial_number, certificate.fingerprint(hashes.SHA256()).hex()
    if ledger_path(home.pki).exists():
        for record in read_ledger(ledger_path(home.pki)):
            if record.serial and record.certificate:
                yield int(record.serial, 16), record.certificate
