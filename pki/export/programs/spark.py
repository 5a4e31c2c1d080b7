"""Stock Spark: TLS for its RPC and block transfer, mutual TLS for its web pages.

https://spark.apache.org/docs/4.3.0/security.html
"""

from __future__ import annotations

from sluice.pki.export.programs.sources import TLS13_SUITES, Handover

TESTED_WITH = "Apache Spark 4.3.0 on Java 17"

_NOTES = (
    "",
    "Add these lines to spark-defaults.conf on every machine of the Spark cluster. They contain the stores' password:",
    "keep the file's mode 0600. Spark reads the stores when a process starts.",
    "",
    "What stock Spark cannot do: its RPC and block transfer never ask for a client certificate, check no host name and",
    "no name in a certificate, and read no revocation list. A client learns that a server is of this authority; a",
    "server learns nothing about its clients. Hence spark.authenticate below, which needs a secret: YARN and",
    "Kubernetes make one for each application; elsewhere set spark.authenticate.secret.file to a file of mode 0600.",
    "What Sluice runs itself (`sluice submit`) has none of these limits: a security provider inside the JVM demands",
    "and checks certificates on both ends of these connections.",
)


def render(handover: Handover) -> dict[str, bytes]:
    """``spark-defaults.conf`` beside the stores."""
    settings = {
        "spark.ssl.enabled": "true",
        "spark.ssl.protocol": "TLSv1.3",
        "spark.ssl.enabledAlgorithms": ",".join(TLS13_SUITES),
        "spark.ssl.keyStore": handover.key_store,
        "spark.ssl.keyStoreType": "PKCS12",
        "spark.ssl.keyStorePassword": handover.password,
        "spark.ssl.keyPassword": handover.password,
        "spark.ssl.trustStore": handover.trust_store,
        "spark.ssl.trustStoreType": "PKCS12",
        "spark.ssl.trustStorePassword": handover.password,
    }
    text = (
        handover.heading("Spark", TESTED_WITH, *_NOTES)
        + f"""
# Stores and protocol for all that follows.
{_lines(settings)}
# RPC and block transfer.
spark.ssl.rpc.enabled true
spark.authenticate true

# The web pages of driver, master, workers and history server, at their port + 400 (spark.ssl.ui.port): here Spark
# does demand a client certificate.
spark.ssl.needClientAuth true
# The master's REST port has neither TLS nor a login.
spark.master.rest.enabled false
"""
    )
    return {**handover.stores(), "spark-defaults.conf": text.encode()}


def _lines(settings: dict[str, object]) -> str:
    return "".join(f"{name} {value}\n" for name, value in settings.items())
