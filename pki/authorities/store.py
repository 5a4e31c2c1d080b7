"""The authorities on disk: ``<pki>/authorities/{root,internal,edge}/{cert.pem,key.pem}``.

The key of an authority may be in a token instead: then ``key.uri`` says which it is, and there is no ``key.pem``.

One rename creates an authority's directory with both files in it, so that after a crash it is complete or absent.
Existing files are never overwritten. A lock prevents two processes from creating at once.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from sluice.core import (
    PUBLIC_MODE,
    SECRET_MODE,
    StoreError,
    locked,
    make_private_directory,
    read_bounded,
    read_secret,
    remove_leftovers,
    replace_set,
    staged_name,
    sync_directory,
)
from sluice.pki.authorities.signing import (
    Authority,
    Generate,
    create_intermediate,
    create_root,
    to_pem,
    trust_domain_of,
)
from sluice.pki.config import PkiConfig
from sluice.pki.pkcs11 import TOKEN_KEYS, TokenKey, TokenKeys, TokenUri, format_reference, read_reference
from sluice.pki.x509 import (
    DAMAGED,
    ISSUING,
    AuthorityKind,
    PrivateKey,
    encrypt_key,
    generate_key,
    key_from_pem,
    key_to_pem,
    same_public_key,
)

CERTIFICATE_FILE = "cert.pem"
KEY_FILE = "key.pem"
REFERENCE_FILE = "key.uri"
"""In the place of :data:`KEY_FILE`: the reference to a key in a token (RFC 7512); never a PIN."""
READ_ATTEMPTS = 3
"""How often certificate and key are read again when another authority replaces them meanwhile."""
ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
"""How a PKCS#8 file with a passphrase begins (RFC 7468, section 11)."""


@dataclass(frozen=True, slots=True)
class Created:
    """What :meth:`AuthorityStore.ensure` did: kinds made now, and kinds that were there."""

    made: tuple[AuthorityKind, ...]
    kept: tuple[AuthorityKind, ...]


class AuthorityStore:
    """The authorities below one ``pki`` directory, with the keys in their files, or in ``tokens``."""

    def __init__(self, pki: Path, tokens: TokenKeys = TOKEN_KEYS) -> None:
        self._pki = pki
        self._tokens = tokens
        self._authorities = pki / "authorities"

    def directory(self, kind: AuthorityKind) -> Path:
        """Where ``kind`` is kept."""
        return self._authorities / kind

    def certificate_file(self, kind: AuthorityKind) -> Path:
        """The certificate of ``kind``; the edge authority's is what outsiders trust."""
        return self.directory(kind) / CERTIFICATE_FILE

    def exists(self, kind: AuthorityKind) -> bool:
        """Whether ``kind`` was created (its key may be kept elsewhere)."""
        return self.directory(kind).exists()

    def has_key(self, kind: AuthorityKind) -> bool:
        """Whether the key of ``kind`` is here, or in a token."""
        return (self.directory(kind) / KEY_FILE).exists() or self.in_token(kind)

    def in_token(self, kind: AuthorityKind) -> bool:
        """Whether the key of ``kind`` is in a token."""
        return (self.directory(kind) / REFERENCE_FILE).exists()

    def reference(self, kind: AuthorityKind) -> TokenUri:
        """The reference to the key of ``kind`` in its token."""
        return read_reference(self.directory(kind) / REFERENCE_FILE)

    def certificate(self, kind: AuthorityKind) -> x509.Certificate:
        """Read the certificate of ``kind``."""
        path = self.certificate_file(kind)
        if not self.exists(kind):
            raise StoreError(f"there is no {kind} authority in {self._pki}", "run `sluice pki init`")
        try:
            certificates = x509.load_pem_x509_certificates(read_bounded(path))
        except DAMAGED as error:
            raise StoreError(f"{path} is damaged: {error}", "restore it from a copy") from error
        if len(certificates) != 1:
            raise StoreError(f"{path} holds {len(certificates)} certificates instead of one", "restore it from a copy")
        return certificates[0]

    def load(self, kind: AuthorityKind, passphrase: bytes | None = None) -> Authority:
        """Read ``kind`` with its key; a missing, foreign or unprotected key is a :class:`StoreError`.

        ``passphrase`` opens a root's key that is encrypted.
        """
        for attempt in range(READ_ATTEMPTS):
            certificate = self.certificate(kind)
            key = self._read_key(kind, passphrase)
            if same_public_key(certificate.public_key(), key.public_key()):
                return Authority(kind, certificate, key)
            # A rotation may have put another authority in this place between the two files.
            if attempt + 1 == READ_ATTEMPTS or self.certificate(kind) == certificate:
                break
        place = REFERENCE_FILE if self.in_token(kind) else KEY_FILE
        raise StoreError(
            f"{self.directory(kind) / place} is not the key of {self.certificate_file(kind)}",
            "restore both from one copy",
        )

    def _read_key(self, kind: AuthorityKind, passphrase: bytes | None) -> PrivateKey:
        if self.in_token(kind):
            if passphrase is not None:
                raise StoreError(
                    f"the key of the {kind} authority is in a token, and has no passphrase",
                    "leave out --root-passphrase-file",
                )
            return self._tokens.load(self.reference(kind))
        path = self.directory(kind) / KEY_FILE
        if not path.exists():
            raise StoreError(f"the key of the {kind} authority is not in {path}", "bring it back to sign with it")
        pem = read_secret(path)
        if passphrase is None and ENCRYPTED in pem:
            raise StoreError(
                f"the key of the {kind} authority is encrypted", "give its passphrase with --root-passphrase-file"
            )
        return key_from_pem(pem, str(path), passphrase)

    def is_encrypted(self, kind: AuthorityKind) -> bool:
        """Whether the key of ``kind`` is here and has a passphrase."""
        path = self.directory(kind) / KEY_FILE
        return path.exists() and ENCRYPTED in read_secret(path)

    def add(self, authority: Authority, *, root_passphrase: bytes | None = None) -> None:
        """Put an authority in its place; :class:`StoreError` when there is one: keys are never overwritten."""
        make_private_directory(self._pki)
        make_private_directory(self._authorities)
        self._install(authority, root_passphrase)

    def ensure(
        self,
        config: PkiConfig,
        now: dt.datetime,
        *,
        root_passphrase: bytes | None = None,
        places: Mapping[AuthorityKind, TokenUri] | None = None,
    ) -> Created:
        """Create the authorities that are missing; what exists stays as it is.

        Args:
            config: what they are to be like.
            now: from when on they are valid.
            root_passphrase: encrypts the key of a new root, and opens that of an existing one. The other two sign
                unattended, so that their passphrase would have to be stored beside their keys anyway.
            places: tokens in which to create the keys of these kinds; other keys are in files.

        Raises:
            StoreError: an authority is damaged, belongs to another trust domain, or the root's key is needed and
                missing; or the key of an existing one is not in the requested token.
        """
        places = places or {}
        if root_passphrase is not None and AuthorityKind.ROOT in places:
            raise StoreError("a key in a token has no passphrase", "leave out --root-passphrase-file")
        make_private_directory(self._pki)
        make_private_directory(self._authorities)
        with locked(self._authorities):
            remove_leftovers(self._authorities)
            if root_passphrase is not None:
                self._refuse_plain_root()
            made: list[AuthorityKind] = []
            for kind in AuthorityKind:
                if self.exists(kind):
                    self.check(kind, config)
                    self._refuse_elsewhere(kind, places)
                    continue
                self._refuse_without_root(kind)
                root = None if kind is AuthorityKind.ROOT else self.load(AuthorityKind.ROOT, root_passphrase)
                with self.making(kind, config, places.get(kind)) as generate:
                    self._install(
                        create_root(config, now, generate)
                        if root is None
                        else create_intermediate(kind, root, config, now, generate),
                        root_passphrase,
                    )
                made.append(kind)
        return Created(tuple(made), tuple(kind for kind in AuthorityKind if kind not in made))

    @contextlib.contextmanager
    def making(self, kind: AuthorityKind, config: PkiConfig, place: TokenUri | None) -> Iterator[Generate]:
        """Yields a function that makes an authority's key, in ``place`` or for a file; errors undo it in ``place``."""
        made: list[TokenKey] = []

        def generate(algorithm: str) -> PrivateKey:
            if place is None:
                return generate_key(algorithm)
            made.append(self._tokens.generate(place, algorithm, f"sluice {config.trust_domain} {kind}"))
            return made[-1]

        try:
            yield generate
        except BaseException:
            for key in made:
                with contextlib.suppress(StoreError):
                    self._tokens.destroy(key.uri)
            raise

    def destroy_token_key(self, kind: AuthorityKind) -> None:
        """Remove the key of ``kind`` from its token."""
        self._tokens.destroy(self.reference(kind))

    def _refuse_elsewhere(self, kind: AuthorityKind, places: Mapping[AuthorityKind, TokenUri]) -> None:
        if (place := places.get(kind)) is None:
            return
        if not self.in_token(kind) or self.reference(kind).place != place.place:
            raise StoreError(
                f"there is an {kind} authority in {self._pki}, and its key is not in {place.name}",
                f"keys never move: replace it with `sluice pki rotate prepare {kind} --key ...`",
            )

    def _refuse_without_root(self, kind: AuthorityKind) -> None:
        if kind is AuthorityKind.ROOT and any(self.exists(other) for other in ISSUING):
            raise StoreError(
                f"{self.directory(kind)} is missing although authorities signed by it exist",
                "restore its cert.pem from a copy (its key is not needed)",
            )

    def install_signed(self, authority: Authority, root: x509.Certificate) -> None:
        """Install an authority that was signed elsewhere, and its root's certificate unless it is there.

        Raises:
            StoreError: the authority exists already, or another root does; nothing was changed.
        """
        make_private_directory(self._pki)
        make_private_directory(self._authorities)
        with locked(self._authorities):
            remove_leftovers(self._authorities)
            if self.exists(authority.kind):
                raise StoreError(f"there is an {authority.kind} authority in {self._pki}", "keys are never overwritten")
            if not self.exists(AuthorityKind.ROOT):
                self._install_files(AuthorityKind.ROOT, {CERTIFICATE_FILE: (to_pem(root), PUBLIC_MODE)})
            elif self.certificate(AuthorityKind.ROOT) != root:
                raise StoreError(
                    f"{self.certificate_file(AuthorityKind.ROOT)} is another root's", "have it signed by that root"
                )
            self._install(authority, None)

    def _refuse_plain_root(self) -> None:
        path = self.directory(AuthorityKind.ROOT) / KEY_FILE
        if path.exists() and not self.is_encrypted(AuthorityKind.ROOT):
            raise StoreError(
                f"{path} is there and has no passphrase",
                f"give it one: openssl pkcs8 -topk8 -v2 aes-256-cbc -iter 600000 -in {path} -out encrypted.pem",
            )

    def check(self, kind: AuthorityKind, config: PkiConfig) -> None:
        """Refuse an authority that is not of the configured trust domain."""
        domain = trust_domain_of(self.certificate(kind))
        if domain != config.trust_domain:
            raise StoreError(
                f"the {kind} authority in {self._pki} is of trust domain {domain!r}, not {config.trust_domain!r}",
                "use another --home, or set pki.trust_domain back",
            )

    def _install(self, authority: Authority, root_passphrase: bytes | None) -> None:
        passphrase = root_passphrase if authority.kind is AuthorityKind.ROOT else None
        certificate = to_pem(authority.certificate)
        if isinstance(authority.key, TokenKey):
            name, content = REFERENCE_FILE, format_reference(authority.key.uri)
        elif passphrase is None:
            name, content = KEY_FILE, key_to_pem(authority.key)
        else:
            name, content = KEY_FILE, encrypt_key(authority.key, passphrase)
        self._install_files(
            authority.kind, {name: (content, SECRET_MODE), CERTIFICATE_FILE: (certificate, PUBLIC_MODE)}
        )

    def _install_files(self, kind: AuthorityKind, files: dict[str, tuple[bytes, int]]) -> None:
        staging = self._authorities / staged_name(kind)
        try:
            make_private_directory(staging)
            replace_set(staging, files)
            # rename(2) refuses to replace a directory that is not empty: an existing key is never lost.
            staging.rename(self.directory(kind))
        except OSError as error:
            raise StoreError(f"cannot write {self.directory(kind)}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync_directory(self._authorities)
