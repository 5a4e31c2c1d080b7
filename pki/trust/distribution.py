"""Installs trust in identity directories: new anchors in ``ca.pem``, then their CRLs in ``crl.pem``.

A directory belongs to the side, internal or edge, that it shares an anchor with. A bundle without any of the current
anchors is refused: trust is handed over in steps (A, A+B, B+A, B), never swapped.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core import (
    LOCK_PATIENCE_SECONDS,
    CrlRejected,
    Home,
    LockHeld,
    StoreError,
    file_stamp,
    locked,
    write_public,
)
from sluice.pki.authorities import trust_domain_of
from sluice.pki.identities import CA_FILE, CHAIN_FILE, MAX_ANCHORS, Stamp, is_authority, read_certificates
from sluice.pki.revocation import CRL_FILE, identity_directories, install_crls, load_crls
from sluice.pki.x509 import DAMAGED, certified_identity


@dataclass(frozen=True, slots=True)
class TrustBundle:
    """The trust of one side: anchors, of which the first signs now, and their CRLs (PEM each)."""

    anchors: tuple[x509.Certificate, ...]
    ca_pem: bytes
    lists: tuple[bytes, ...]

    @classmethod
    def parse(cls, ca_pem: bytes, crl_pem: bytes) -> TrustBundle:
        """Parse and check input from outside; raises :class:`StoreError` or :class:`CrlRejected`."""
        try:
            anchors = x509.load_pem_x509_certificates(ca_pem)
        except DAMAGED as error:
            raise StoreError(f"the trust bundle holds no readable PEM certificate: {error}") from error
        if not 0 < len(anchors) <= MAX_ANCHORS:
            raise StoreError(f"the trust bundle holds {len(anchors)} certificates", f"1 to {MAX_ANCHORS} are possible")
        if any(not is_authority(anchor) for anchor in anchors) or len({trust_domain_of(each) for each in anchors}) > 1:
            raise StoreError("the trust bundle holds more than the authorities of one trust domain")
        lists = load_crls(crl_pem) if crl_pem else []
        return cls(tuple(anchors), ca_pem, tuple(each.public_bytes(Encoding.PEM) for each in lists))


def replace_anchors(directory: Path, bundle: TrustBundle, *, patience: float = LOCK_PATIENCE_SECONDS) -> bool:
    """Put the anchors of ``bundle`` into an identity directory; returns whether anything changed.

    Raises:
        StoreError: it is of another trust domain than the identity, shares no anchor with the current trust there, or
            could not be written; nothing was changed.
    """
    # The lock of writers of a whole identity: an old bundle must not overwrite a new one.
    with locked(directory.parent, patience=patience):
        present = read_certificates(directory / CA_FILE)
        if tuple(present) == bundle.anchors:
            return False
        domain = certified_identity(read_certificates(directory / CHAIN_FILE)[0]).trust_domain
        if trust_domain_of(bundle.anchors[0]) != domain:
            raise StoreError(f"the trust bundle is not of {domain}, which {directory} is of")
        if not set(present) & set(bundle.anchors):
            raise _nothing_in_common(directory)
        write_public(directory / CA_FILE, bundle.ca_pem)
    return True


def install_trust(
    directory: Path, bundle: TrustBundle, now: dt.datetime, *, patience: float = LOCK_PATIENCE_SECONDS
) -> bool:
    """Put anchors and CRLs into an identity directory that trusts one of the anchors; returns whether anything changed.

    ``patience`` is how long to wait for each lock, in seconds.

    Raises:
        StoreError: as :func:`replace_anchors`.
        CrlRejected: a CRL was refused; the others were installed.
    """
    # 1. Anchors first: a CRL is only valid beside the anchor that signed it.
    changed = replace_anchors(directory, bundle, patience=patience)
    # 2. Each CRL by itself: a bad one does not block the others.
    return _install_lists(directory, bundle.lists, now, patience) or changed


class TrustPusher:
    """Keeps directories at the latest trust; remembers up-to-date ones, so that another check is cheap.

    Not thread-safe.

    Args:
        home: every identity directory below it is served, those of jobs included.
        directories: others, anywhere; for these it is an error to share no side with the trust.
    """

    def __init__(self, home: Home, directories: Sequence[Path] = ()) -> None:
        self._home = home
        self._directories = tuple(directories)
        self._bundles: tuple[TrustBundle, ...] = ()
        self._done: dict[Path, Stamp] = {}

    def take(self, bundles: Sequence[TrustBundle]) -> None:
        """Set the trust to install."""
        self._bundles = tuple(bundles)
        self._done.clear()

    def push(self, now: dt.datetime) -> tuple[list[Path], dict[Path, str]]:
        """Install the latest trust in every directory that is new or has changed.

        Returns the changed directories, and the error of each failed one: one bad directory does not block the others.
        """
        changed: list[Path] = []
        failed: dict[Path, str] = {}
        patience = LOCK_PATIENCE_SECONDS
        found = dict.fromkeys((*self._directories, *identity_directories(self._home)))
        for directory in found:
            stamp = _stamp(directory)
            if self._done.get(directory) == stamp:
                continue
            try:
                if self._serve(directory, now, patience):
                    # Check it again next time: somebody else may have written after us.
                    changed.append(directory)
                    continue
            except StoreError as error:
                if isinstance(error, LockHeld):
                    patience = 0.0  # wait once in all: a job can lock the directories of all its processes
                if directory.exists():  # a job's directory may have gone meanwhile
                    failed[directory] = f"{directory}: {error}"
                continue
            except CrlRejected as error:
                failed[directory] = f"{directory}: {error}"
            self._done[directory] = stamp
        for gone in self._done.keys() - found.keys():
            del self._done[gone]
        return changed, failed

    def _serve(self, directory: Path, now: dt.datetime, patience: float) -> bool:
        if not (directory / CA_FILE).exists():
            return False
        present = set(read_certificates(directory / CA_FILE))
        for bundle in self._bundles:
            if present & set(bundle.anchors):
                return install_trust(directory, bundle, now, patience=patience)
        if self._bundles and directory in self._directories:
            raise _nothing_in_common(directory)
        return False


def _nothing_in_common(directory: Path) -> StoreError:
    return StoreError(
        f"{directory} trusts none of the authorities in the new trust bundle",
        "enrol it again with a join token: it missed a whole rotation, or the bundle is foreign",
    )


def _install_lists(directory: Path, lists: Sequence[bytes], now: dt.datetime, patience: float) -> bool:
    changed = False
    refused: list[CrlRejected] = []
    for each in lists:
        try:
            changed = install_crls(directory, each, now, patience=patience) or changed
        except CrlRejected as error:
            refused.append(error)
    if refused:
        raise refused[0]
    return changed


def _stamp(directory: Path) -> Stamp:
    with contextlib.suppress(StoreError):
        return tuple(file_stamp(directory / name) for name in (CA_FILE, CRL_FILE))
    return ()
