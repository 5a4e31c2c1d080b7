"""Secrets of SDS: a certificate with its key, and the trust anchors that verify peers."""

from __future__ import annotations

from sluice.core.xds.messages import SECRET, Message, message_class


def certificate_secret(name: str, chain_pem: bytes, key_pem: bytes) -> Message:
    """A certificate chain and its private key."""
    secret = message_class(SECRET)(name=name)
    secret.tls_certificate.certificate_chain.inline_bytes = chain_pem
    secret.tls_certificate.private_key.inline_bytes = key_pem
    return secret


def trust_secret(name: str, anchors_pem: bytes, crls_pem: bytes) -> Message:
    """Trust anchors and revocation lists; no names of peers.

    Envoy would add them to the names of its own configuration and accept a match of any: a name from here could only
    widen what the configuration demands.
    """
    secret = message_class(SECRET)(name=name)
    secret.validation_context.trusted_ca.inline_bytes = anchors_pem
    if crls_pem:
        # The anchors are intermediates: the root's CRL, which is not here, says whether they are revoked. With CRLs,
        # Envoy refuses every peer whose issuer has none, and all peers once a CRL has expired.
        secret.validation_context.crl.inline_bytes = crls_pem
        secret.validation_context.only_verify_leaf_cert_crl = True
    return secret
