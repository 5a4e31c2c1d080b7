"""Converts identities to the formats of other programs; takes an identity and returns bytes."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from cryptography import x509

from sluice.core import StoreError
from sluice.pki.authorities import to_pem
from sluice.pki.identities import IdentityMaterial
from sluice.pki.x509 import jks_key_store, jks_trust_store, pkcs12 as keystore


class Format(enum.StrEnum):
    """What an export contains."""

    CA = "ca"
    CHAIN = "chain"
    BUNDLE = "bundle"
    PKCS12 = "pkcs12"
    PKCS12_TRUST = "pkcs12-trust"
    PKCS12_LEGACY = "pkcs12-legacy"
    JKS = "jks"
    JKS_TRUST = "jks-trust"


@dataclass(frozen=True, slots=True)
class Export:
    """The content of a file; ``password`` opens it when it is a keystore, ``secret`` when it holds a private key."""

    data: bytes = field(repr=False)
    secret: bool = False
    password: bytes | None = field(default=None, repr=False)


def export_identity(identity: IdentityMaterial, kind: Format) -> Export:
    """Convert ``identity``; keystores get a new random password."""
    match kind:
        case Format.CA | Format.PKCS12_TRUST | Format.JKS_TRUST:
            return export_anchors(identity.anchors, kind)
        case Format.CHAIN:
            return Export(to_pem(identity.leaf, *identity.chain))
        case Format.BUNDLE:
            # Key first, then leaf and intermediate: the order that nginx, HAProxy, curl and Python read.
            return Export(identity.key_pem + to_pem(identity.leaf, *identity.chain), secret=True)
        case Format.PKCS12:
            password = keystore.random_password()
            data = keystore.key_store(identity.key, identity.leaf, identity.chain, password)
            return Export(data, secret=True, password=password)
        case Format.PKCS12_LEGACY:
            password = keystore.random_password()
            data = keystore.legacy_key_store(identity.key, identity.leaf, identity.chain, password)
            return Export(data, secret=True, password=password)
        case Format.JKS:
            password = keystore.random_password()
            alias = keystore.ALIAS.decode()
            data = jks_key_store(identity.key, identity.leaf, identity.chain, password, alias=alias)
            return Export(data, secret=True, password=password)


def export_anchors(anchors: tuple[x509.Certificate, ...], kind: Format) -> Export:
    """Trust anchors only, for verifiers."""
    match kind:
        case Format.CA:
            return Export(to_pem(*anchors))
        case Format.PKCS12_TRUST:
            password = keystore.random_password()
            return Export(keystore.trust_store(anchors, password), password=password)
        case Format.JKS_TRUST:
            password = keystore.random_password()
            return Export(jks_trust_store(anchors, password), password=password)
        case _:
            offered = f"{Format.CA}, {Format.PKCS12_TRUST} or {Format.JKS_TRUST}"
            raise StoreError(f"an authority is exported as {offered}, not as {kind}")
