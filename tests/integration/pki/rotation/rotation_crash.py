"""Rotates an authority repeatedly, its command killed one step later each time; reports the result.

Used by test_rotation_crash.py.

    python rotation_crash.py DIRECTORY prepare|activate|finish|abort

The process gets SIGKILL right before a step (:data:`tests.crash_injection.STEPS`). Prints one JSON object
per crash: the phase that was left, what a reader finds then, and whether the command could be repeated
and the rotation be completed.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from functools import partial
from pathlib import Path

from sluice.core.errors import StoreError
from sluice.core.home import Home
from sluice.pki.authorities.rotation_phases import RotationRefused
from sluice.pki.authorities.rotation_store import RotationStore
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.authorities.trusted_authorities import TrustStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_certificates, read_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.rotation.rotator import Rotator
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.trust.anchor_files import push_trust
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from sluice.pki.x509.profiles import ISSUING, AuthorityKind
from tests.crash_injection import killed_before

CONFIG = PkiConfig()
WORKER = SpiffeId.process(CONFIG.trust_domain, Role.TASKMANAGER, "tm-1")
INTERNAL, ROOT = AuthorityKind.INTERNAL, AuthorityKind.ROOT


class Place:
    """One home with one identity."""

    def __init__(self, directory: Path, subject: AuthorityKind) -> None:
        self.subject = subject
        self.home = Home.at(directory)
        self.worker = self.home.identity(Role.TASKMANAGER, "tm-1")
        self.issuer = LocalIssuer(self.home, CONFIG)
        self.authorities = AuthorityStore(self.home.pki)
        self.rotator = Rotator(self.home, CONFIG, renew=self.renew)

    def create(self) -> None:
        """Authorities and an identity."""
        self.home.create()
        self.issuer.ensure_authorities()
        self.issuer.issue_to(self.worker, WORKER)

    def renew(self) -> list[str]:
        """Renew the identity if it is half written or not from the current authority."""
        try:
            superseded = issuer_id(read_identity(self.worker)[0].leaf) != key_id(self.authorities.certificate(INTERNAL))
        except StoreError:
            superseded = True
        if superseded:
            self.issuer.issue_to(self.worker, WORKER)
        return []

    def verb(self, name: str) -> None:
        """Run one rotation command."""
        getattr(self.rotator, name)(self.subject)

    def repeat(self, name: str) -> str:
        """Repeat a command that was killed; return ``done``, or why there was nothing left to do."""
        try:
            self.verb(name)
        except RotationRefused as error:
            return error.what
        return "done"

    def look(self) -> dict[str, object]:
        """Return what a process, an issuer and the next command find now."""
        rotation, phase = RotationStore(self.home.pki).read()
        signers = {kind: self.authorities.load(kind) for kind in AuthorityKind}
        kept = []
        for kind in ISSUING:
            anchors = TrustStore(self.home.pki).anchors(kind)
            kept.append(anchors[0] == signers[kind].certificate)
        try:
            material, _ = read_identity(self.worker)
            usable = issuer_id(material.leaf) in {key_id(anchor) for anchor in material.anchors}
        except StoreError as error:
            usable = "is not the key of" in error.what  # between two files: a process keeps what it has
        return {"phase": phase, "rotating": rotation is not None, "signer_first": all(kept), "usable": usable}


SUBJECT = {"prepare": INTERNAL, "activate": ROOT, "finish": ROOT, "abort": INTERNAL}
"""With the root three authorities change places: the longest way."""
PATH = {"prepare": [], "activate": ["prepare"], "finish": ["prepare", "activate"], "abort": ["prepare", "activate"]}
REST = {"prepare": ["activate", "finish"], "activate": ["finish"], "finish": [], "abort": []}


def main(directory: Path, name: str) -> None:
    """Kill the command at one step after another, each time on a fresh copy of the state before it."""
    template = Place(directory / "template", SUBJECT[name])
    template.create()
    for each in PATH[name]:
        template.verb(each)
    for step in itertools.count(1):
        copy = directory / str(step)
        shutil.copytree(template.home.root, copy, symlinks=True)
        place = Place(copy, SUBJECT[name])
        killed = killed_before(step, partial(place.verb, name))
        report: dict[str, object] = {"step": step, **place.look()}
        report["repeated"] = place.repeat(name)
        for rest in REST[name]:
            place.verb(rest)
        report["end"] = RotationStore(copy / "pki").read()[1]
        push_trust(place.home)
        report["leftovers"] = [str(path.relative_to(copy)) for path in copy.rglob("*.tmp")]
        report["keys_left"] = [str(path) for path in copy.rglob(".rotation.*.tmp/**/key.pem")]
        report["trusted"] = len(read_certificates(place.worker / "ca.pem"))
        sys.stdout.write(json.dumps(report) + "\n")
        shutil.rmtree(copy)
        if not killed:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
