"""``sluice run job-pod``: a driver or an executor in a pod of Spark's own Kubernetes manager."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.errors import UsageError
from sluice.cli.run.joining import AnchorsOption, CaOption, PodTokenFileOption


def job_pod(
    arguments: Annotated[
        list[str], typer.Argument(metavar="driver|executor ARGUMENTS…", help="Arguments of the container from Spark.")
    ],
    trust_domain: Annotated[str, typer.Option(help="Trust domain of the identity.")],
    identity_dir: Annotated[Path, typer.Option(help="Directory of the identity, on a file system in memory.")],
    plugin: Annotated[Path, typer.Option(help="Path of the link to Sluice's plugin for Spark.")],
    namespace: Annotated[str, typer.Option(envvar="SLUICE_POD_NAMESPACE", help="Namespace of this pod.")],
    pod_name: Annotated[
        str, typer.Option(envvar="SLUICE_POD_NAME", help="Name of this pod, which determines its identity.")
    ],
    ca: CaOption = None,
    pod_token_file: PodTokenFileOption = None,
    ca_anchors: AnchorsOption = None,
    ca_crls: Annotated[Path | None, typer.Option(help="PEM file with CRLs, beside the trust anchors.")] = None,
) -> None:
    """Run a driver or an executor in a pod, with its own identity, which is renewed.

    The pods of sluice submit --target kubernetes have this command; there is no need to type it. The pod proves itself
    to the CA with its service account token, again for each renewal.
    """
    from sluice.cli.serving import serve
    from sluice.core import run_with_background
    from sluice.pki.agent import ManagedIdentity
    from sluice.pki.attestation import job_pod_identity
    from sluice.pki.ca import parse_cas
    from sluice.pki.enrolment import AttestingIssuer, EnrolledIdentity, MountedTrust, PodTokenFile, RenewalService
    from sluice.runtime.spark import ensure_plugin, find_preferred_java, find_spark
    from sluice.runtime.spark.managers import job_pod_command, job_pod_environment, run_in_pod

    if not ca or pod_token_file is None or ca_anchors is None:
        raise UsageError("a pod of a job needs --ca, --pod-token-file and --ca-anchors", "see sluice submit --render")
    spiffe_id = job_pod_identity(trust_domain, namespace, pod_name)
    if spiffe_id is None:
        raise UsageError(
            f"pod {namespace}/{pod_name} is not of a job", "sluice submit --target kubernetes gives pods their names"
        )
    java, spark = find_preferred_java(), find_spark()
    command = job_pod_command(arguments, os.environ, spark_home=spark.home, java=java.executable)
    environment = job_pod_environment(os.environ, spark_home=spark.home, java_home=java.home)
    addresses = parse_cas(ca)
    identity = ManagedIdentity(spiffe_id, identity_dir, accept=(f"spiffe://{trust_domain}/job/{spiffe_id.job_id}/*",))
    issuer = AttestingIssuer(lambda: addresses, {spiffe_id: PodTokenFile(pod_token_file, ca_anchors)})
    follower = MountedTrust(ca_anchors, ca_crls or ca_anchors.with_name("crl.pem"), identity_dir)
    codes: list[int] = []

    async def main() -> None:
        keeper = RenewalService([EnrolledIdentity(identity, issuer)], follower)

        async def run() -> None:
            codes.append(await run_in_pod(command, environment))

        try:
            await keeper.start()
            await run_with_background(keeper.run(), run())
        finally:
            await keeper.close()

    link_plugin(ensure_plugin(java=java, spark=spark), plugin)
    serve(main())
    raise typer.Exit(codes[0] if codes else 143)


def link_plugin(jar: Path, link: Path) -> None:
    """Make ``link`` point to ``jar``, also after a restart of the container."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(jar)
