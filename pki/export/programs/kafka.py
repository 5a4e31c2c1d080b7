"""Kafka: brokers and clients, in Java and with librdkafka.

https://kafka.apache.org/documentation/#security_ssl,
https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

from __future__ import annotations

from sluice.pki.authorities import trusted_pem
from sluice.pki.export.programs.sources import TLS13_SUITES, Handover

TESTED_WITH = "librdkafka 2.16.0, on the client's side"

_PRIVATE = "They contain the stores' password: keep the file's mode 0600."
_SERVER_NOTES = (
    "",
    f"Add these lines to server.properties. {_PRIVATE}",
    "No broker was at hand for the proof: these lines follow Kafka's documentation.",
    "Give the KRaft controllers' listener the protocol SSL in listener.security.protocol.map, too.",
    "Kafka can read neither SPIFFE IDs nor revocation lists: for super.users and ACLs, who connects is the subject of",
    "the certificate, as in User:CN=taskmanager/tm-7. Take the ACLs of who is revoked away.",
)
_CLIENT_NOTES = ("", f"For producers, consumers and tools in Java. {_PRIVATE}")
_LIBRDKAFKA_NOTES = ("", "For clients in C, Python, Go, .NET and others that are built on librdkafka.")


def render(handover: Handover) -> dict[str, bytes]:
    """``server.properties``, ``client.properties`` and ``librdkafka.properties``, beside stores and PEM files."""
    identity, directory = handover.identity, handover.directory
    java = {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": handover.key_store,
        "ssl.keystore.password": handover.password,
        "ssl.key.password": handover.password,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": handover.trust_store,
        "ssl.truststore.password": handover.password,
        "ssl.protocol": "TLSv1.3",
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.cipher.suites": ",".join(TLS13_SUITES),
        # Who dials checks that the name that it dials is in the certificate.
        "ssl.endpoint.identification.algorithm": "https",
    }
    server = {
        "listeners": "SSL://:9093",
        "security.inter.broker.protocol": "SSL",
        "ssl.client.auth": "required",
        **java,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "false",
    }
    librdkafka = {
        "security.protocol": "ssl",
        "ssl.key.location": directory / "key.pem",
        "ssl.certificate.location": directory / "chain.pem",
        "ssl.ca.location": directory / "trust.pem",
        "ssl.endpoint.identification.algorithm": "https",
        "enable.ssl.certificate.verification": "true",
    }
    return {
        **handover.stores(),
        "trust.pem": trusted_pem(identity.anchors),
        "key.pem": identity.key_pem,
        "chain.pem": identity.chain_pem,
        "server.properties": _file(handover, "Kafka broker", _SERVER_NOTES, server),
        "client.properties": _file(handover, "Kafka client", _CLIENT_NOTES, {"security.protocol": "SSL", **java}),
        "librdkafka.properties": _file(handover, "Kafka client", _LIBRDKAFKA_NOTES, librdkafka),
    }


def _file(handover: Handover, title: str, notes: tuple[str, ...], settings: dict[str, object]) -> bytes:
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    return (handover.heading(title, TESTED_WITH, *notes) + "\n" + lines).encode()
