"""Runs the online authority repeatedly, killed at a later write each time, and reports what is left.

Used by test_ca_crash.

    python ca_crash.py DIRECTORY

The authority's own :class:`~sluice.pki.ledger.file.Disk` kills the process (SIGKILL) before, in the
middle of, or after its n-th step. Prints one JSON object per crash: which certificates left the process,
what the ledger says after a restart, and how often the one token of the run could be used in all.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from functools import partial
from pathlib import Path

from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.files.append_log import Disk
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.config import PkiConfig
from sluice.pki.errors import EnrolmentRefused
from sluice.pki.identities.join_tokens import mint
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.issuing.leaf import SignedChain
from sluice.pki.ledger.file import ledger_path, read_ledger, verify_ledger
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.key_identifiers import fingerprint
from sluice.pki.x509.profiles import AuthorityKind
from tests.crash_injection import WHEN, CrashingDisk, killed

CONFIG = PkiConfig()
WORKER = SpiffeId.process(CONFIG.trust_domain, Role.TASKMANAGER, "tm-1")
MASTER = SpiffeId.process(CONFIG.trust_domain, Role.JOBMANAGER, "jm-1")
DRIVER = SpiffeId.driver(CONFIG.trust_domain, "a" * 32)


def serve_and_die(pki: Path, token: str | None, disk: Disk, leaving: int) -> None:
    """Run the whole life of the authority, and write each certificate it issues to the pipe ``leaving``.

    Without a token the authority only starts and repairs its ledger.
    """

    def leave(signed: SignedChain) -> x509.Certificate:
        leaf = x509.load_pem_x509_certificates(signed.chain_pem.encode())[0]
        os.write(leaving, fingerprint(leaf).encode() + b"\n")
        return leaf

    authority = OnlineAuthority(pki, CONFIG, disk=disk)
    if token is None:
        return
    leave(authority.issue_job(MASTER, str(DRIVER), new_csr(DRIVER)[1]))
    worker = leave(authority.enrol(token, new_csr(WORKER)[1]))
    leave(authority.renew(worker, new_csr(WORKER)[1]))
    authority.close()


def uses(pki: Path, token: str) -> int:
    """Start the authority again and try to use ``token`` twice; return how many tries were granted."""
    authority = OnlineAuthority(pki, CONFIG)
    granted = 0
    for _ in range(2):
        try:
            authority.enrol(token, new_csr(WORKER)[1])
            granted += 1
        except EnrolmentRefused:
            continue
    authority.close()
    return granted


def main(directory: Path) -> None:
    """Create a fresh authority for each way to die.

    Authorities that repair a torn tail of the ledger are killed during the repair, too.
    """
    template = directory / "template"
    LocalIssuer(template, CONFIG).ensure_authorities()
    certificate = AuthorityStore(template).certificate(AuthorityKind.INTERNAL)
    for when in WHEN:
        for step in itertools.count(1):
            pki = directory / f"{when}-{step}"
            pki.mkdir(mode=0o700)
            (pki / "authorities").symlink_to(template / "authorities")
            record, token = mint(WORKER, certificate, now=utc_now())
            TokenStore(pki).add(record, now=utc_now())
            died, left = killed(partial(serve_and_die, pki, token, CrashingDisk(step, when)))
            repairs = 0
            if died and when == "torn" and step % 4 == 0:
                # The repair is killed at each of its own steps too.
                repairs = sum(
                    killed(partial(serve_and_die, pki, None, CrashingDisk(again, "torn")))[0] for again in range(1, 7)
                )
            granted = uses(pki, token)
            state = verify_ledger(ledger_path(pki))
            records = list(read_ledger(ledger_path(pki)))
            report = {
                "when": when,
                "step": step,
                "died": died,
                "repairs": repairs,
                "left": left,
                "ledger": [each.certificate for each in records],
                "recovered": sum(each.event == "recovered" for each in records),
                "granted_later": granted,
                "token_records": sum(each.token == record.id for each in records),
                "count": state.count,
            }
            sys.stdout.write(json.dumps(report) + "\n")
            if not died:
                break


if __name__ == "__main__":
    main(Path(sys.argv[1]))
