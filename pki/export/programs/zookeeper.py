"""ZooKeeper: TLS for clients and between the servers of an ensemble.

https://zookeeper.apache.org/doc/r3.9.5/zookeeperAdmin.html (Encryption, Authentication, Authorization Options).
"""

from __future__ import annotations

from sluice.pki.export.programs.sources import TLS13_SUITES, Handover

TESTED_WITH = "Apache ZooKeeper 3.9.5 on Java 17"
SECURE_CLIENT_PORT = 2281

_SERVER_NOTES = (
    "",
    "Add these lines to zoo.cfg and take `clientPort` out of it: that one is plaintext.",
    "Every certificate of the same authority is let in; what it may do is for ACLs to say, with the scheme x509 and",
    "the subject for an id, as in x509:CN=jobmanager/jobmanager-1. ZooKeeper cannot read SPIFFE IDs.",
)
_CLIENT_NOTES = (
    "",
    "For zkCli.sh -client-configuration FILE, or as system properties with -D.",
)


def render(handover: Handover) -> dict[str, bytes]:
    """``zoo.cfg`` (lines for the server's) and ``client.properties``, beside the stores."""
    protocol = {
        "protocol": "TLSv1.3",
        "enabledProtocols": "TLSv1.3",
        "ciphersuites": ",".join(TLS13_SUITES),
    }
    need = {**_stores(handover), **protocol, "clientAuth": "need"}
    server = (
        handover.heading("ZooKeeper server", TESTED_WITH, *_SERVER_NOTES)
        + f"""
secureClientPort={SECURE_CLIENT_PORT}
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
{_lines("ssl.", need)}\
# Clients have no host name that could be checked. Stores that are replaced are read again without a restart.
ssl.clientHostnameVerification=false
client.certReload=true

# Between the servers. Who dials checks that the host name in server.N is in the certificate (issue it with --dns or
# --ip); who is dialled does not, for the address would have to resolve back to that name.
sslQuorum=true
sslQuorumReloadCertFiles=true
{_lines("ssl.quorum.", need)}\
ssl.quorum.hostnameVerification=true
ssl.quorum.clientHostnameVerification=false

# Plaintext HTTP otherwise.
admin.enableServer=false
"""
    )
    client = (
        handover.heading("ZooKeeper client", TESTED_WITH, *_CLIENT_NOTES)
        + f"""
zookeeper.client.secure=true
zookeeper.clientCnxnSocket=org.apache.zookeeper.ClientCnxnSocketNetty
{_lines("zookeeper.ssl.", {**_stores(handover), **protocol})}\
# The server's certificate must have the name that the client dials.
zookeeper.ssl.hostnameVerification=true
"""
    )
    return {**handover.stores(), "zoo.cfg": server.encode(), "client.properties": client.encode()}


def _stores(handover: Handover) -> dict[str, str]:
    return {
        "keyStore.location": str(handover.key_store),
        "keyStore.type": "PKCS12",
        "keyStore.passwordPath": str(handover.password_file),
        "trustStore.location": str(handover.trust_store),
        "trustStore.type": "PKCS12",
        "trustStore.passwordPath": str(handover.password_file),
    }


def _lines(prefix: str, settings: dict[str, str]) -> str:
    return "".join(f"{prefix}{name}={value}\n" for name, value in settings.items())
