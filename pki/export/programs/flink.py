"""Flink: TLS between its processes, and for its REST endpoint.

https://nightlies.apache.org/flink/flink-docs-release-2.3/docs/deployment/security/security-ssl/
"""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes

from sluice.pki.export.programs.sources import TLS13_SUITES, Handover

TESTED_WITH = "Apache Flink 2.3.0 on Java 17"

_NOTES = (
    "",
    "Add these lines to the config.yaml of every process of the Flink cluster and of whoever submits jobs, and copy",
    "this directory to each: Flink means one key for a cluster. They contain the stores' password, for Flink takes it",
    "from nowhere else: keep the file's mode 0600. Flink reads the stores when a process starts, and does not look at",
    "revocation lists: give the certificate a lifetime (issue --lifetime) as long as the cluster is to run.",
)


def render(handover: Handover) -> dict[str, bytes]:
    """``config.yaml`` beside the stores."""
    text = (
        handover.heading("Flink", TESTED_WITH, *_NOTES)
        + f"""
# Between JobManager, TaskManagers and their blob servers; both ends show a certificate.
security.ssl.internal.enabled: true
{_stores("security.ssl.internal", handover)}\
# Only this certificate, which all processes of this cluster show, for Flink cannot read SPIFFE IDs. The comparison
# takes the place of the check of the chain. Without this line every process of the trust domain is let in.
security.ssl.internal.cert.fingerprint: "{_fingerprint(handover)}"

# The REST endpoint, and who calls it: any certificate of the same authority.
security.ssl.rest.enabled: true
security.ssl.rest.authentication-enabled: true
{_stores("security.ssl.rest", handover)}\

security.ssl.provider: JDK
security.ssl.protocol: TLSv1.3
security.ssl.algorithms: "{",".join(TLS13_SUITES)}"
# Callers of the REST endpoint check its host name; issue the certificate with --dns and --ip.
security.ssl.verify-hostname: true
"""
    )
    return {**handover.stores(), "config.yaml": text.encode()}


def _fingerprint(handover: Handover) -> str:
    """SHA-1, as Flink requires; an attack needs a second certificate with the same fingerprint, and its key."""
    return handover.identity.leaf.fingerprint(hashes.SHA1()).hex(":").upper()  # noqa: S303  see above


def _stores(prefix: str, handover: Handover) -> str:
    return f"""\
{prefix}.keystore: "{handover.key_store}"
{prefix}.keystore-type: PKCS12
{prefix}.keystore-password: "{handover.password}"
{prefix}.key-password: "{handover.password}"
{prefix}.truststore: "{handover.trust_store}"
{prefix}.truststore-type: PKCS12
{prefix}.truststore-password: "{handover.password}"
"""
