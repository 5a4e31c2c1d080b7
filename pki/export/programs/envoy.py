"""Envoy: the TLS of a listener and of a cluster, with certificate and trust in files that Envoy watches (SDS).

https://www.envoyproxy.io/docs/envoy/v1.40.0/api-v3/extensions/transport_sockets/tls/v3/tls.proto
"""

from __future__ import annotations

import json

from sluice.core import CertificateRejected
from sluice.pki.export.programs.sources import Handover
from sluice.pki.x509 import describe_key

TESTED_WITH = "Envoy 1.40.0"

_TYPES = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
_CERTIFICATE, _TRUST = "certificate", "trust"
_NOTES = (
    "",
    "{where} Files need `node: {{id: ..., cluster: ...}}` in the bootstrap.",
    "Envoy takes a new export, the revocation list included, without a restart. It accepts every identity below:",
    "`sluice pki export --peer ID` narrows that.",
)


def render(handover: Handover) -> dict[str, bytes]:
    """``downstream.yaml`` and ``upstream.yaml`` to paste, ``certificate.json`` and ``trust.json`` that they name.

    Raises:
        CertificateRejected: an Ed25519 key, which BoringSSL does not take.
    """
    identity = handover.identity
    if (algorithm := describe_key(identity.leaf.public_key())) == "ed25519":
        raise CertificateRejected(f"Envoy does not take {algorithm} certificates", "use ecdsa-p256")
    certificate: dict[str, object] = {
        "certificate_chain": {"inline_string": identity.chain_pem.decode()},
        "private_key": {"inline_string": identity.key_pem.decode()},
    }
    trust: dict[str, object] = {"trusted_ca": {"inline_string": identity.ca_pem.decode()}}
    if handover.crl_pem:
        # The anchor is an intermediate (ADR 2): only the leaf is below it, and no list is about the anchor itself.
        trust |= {"crl": {"inline_string": handover.crl_pem.decode()}, "only_verify_leaf_cert_crl": True}
    listener = _socket(handover, "DownstreamTlsContext", "a listener's filter chain", listening=True)
    cluster = _socket(handover, "UpstreamTlsContext", "a cluster", listening=False)
    return {
        "trust.json": _secret(_TRUST, {"validation_context": trust}),
        "certificate.json": _secret(_CERTIFICATE, {"tls_certificate": certificate}),
        "downstream.yaml": listener.encode(),
        "upstream.yaml": cluster.encode(),
    }


def _socket(handover: Handover, context: str, place: str, *, listening: bool) -> str:
    notes = [note.format(where=f"Paste it into {place}.") for note in _NOTES]
    demands = (
        """
    require_client_certificate: true
    # A peer that is revoked must not come back by an old session.
    disable_stateless_session_resumption: true
    disable_stateful_session_resumption: true"""
        if listening
        else ""
    )
    matchers = "".join(
        f"\n            - {{san_type: URI, matcher: {json.dumps(_matcher(peer))}}}"
        for peer in handover.peers or (f"spiffe://{handover.identity.spiffe_id.trust_domain}/*",)
    )
    return (
        handover.heading("Envoy", TESTED_WITH, *notes)
        + f"""\
transport_socket:
  name: envoy.transport_sockets.tls
  typed_config:
    "@type": {_TYPES}.{context}{demands}
    common_tls_context:
      tls_params:
        tls_minimum_protocol_version: TLSv1_3
        tls_maximum_protocol_version: TLSv1_3
      tls_certificate_sds_secret_configs:
        - name: {_CERTIFICATE}
          sds_config: {{path_config_source: {{path: "{handover.directory / "certificate.json"}"}}}}
      combined_validation_context:
        default_validation_context:
          match_typed_subject_alt_names:{matchers}
        validation_context_sds_secret_config:
          name: {_TRUST}
          sds_config: {{path_config_source: {{path: "{handover.directory / "trust.json"}"}}}}
"""
    )


def _matcher(peer: str) -> dict[str, str]:
    # The slash stays in the prefix: spiffe://example would match spiffe://example.evil/ too.
    return {"prefix": peer.removesuffix("*")} if peer.endswith("/*") else {"exact": peer}


def _secret(name: str, content: dict[str, object]) -> bytes:
    resource = {"@type": f"{_TYPES}.Secret", "name": name, **content}
    return (json.dumps({"resources": [resource]}, indent=2) + "\n").encode()
