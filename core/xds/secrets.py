"""Secrets of SDS: a certificate with its key, and what peers are verified with."""

from __future__ import annotations

from sluice.core.xds.messages import SECRET, Message, message_class


def certificate_secret(name: str, chain_pem: bytes, key_pem: bytes) -> Message:
    """A certificate chain and its private key."""
    secret = message_class(SECRET)(name=name)
    secret.tls_certificate.certificate_chain.inline_bytes = chain_pem
    secret.tls_certificate.private_key.inline_bytes = key_pem
    return secret


def trust_secret(name: str, anchors_pem: bytes, crls_pem: bytes) -> Message:
    """Trust anchors and revocation lists; without names of peers.

    Envoy adds names to those of its own configuration, and any one that matches is enough: a matcher from here could
    only widen what the configuration demands.
    """
    secret = message_class(SECRET)(name=name)
    secret.validation_context.trusted_ca.inline_bytes = anchors_pem
    if crls_pem:
        # The anchors are intermediates: whether they are revoked is said by the root's list, which is not here. With
        # lists, Envoy refuses every peer whose issuer has none, and everybody once a list has expired.
        secret.validation_context.crl.inline_bytes = crls_pem
        secret.validation_context.only_verify_leaf_cert_crl = True
    return secret
