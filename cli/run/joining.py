"""``--ca`` and ``--join-token-file`` of ``sluice run``: a process that enrols itself and renews its identity."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.cli.errors import UsageError
from sluice.core import Home, PkiError, run_with_background
from sluice.gateway import EDGE_NAME, ENVOY_NAME
from sluice.pki import PkiConfig, Role, SpiffeId
from sluice.pki.agent import AgentPolicy, ManagedIdentity
from sluice.pki.ca import CaAddress, parse_address, parse_cas
from sluice.pki.enrolment import (
    EdgeEnrollingIssuer,
    EnrolledIdentity,
    EnrollingIssuer,
    JoinCredential,
    JoinTokenFile,
    PodTokenFile,
    RenewalService,
    subscribed_trust,
)
from sluice.pki.x509 import AuthorityKind, Names

CaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ca",
        envvar="SLUICE_CA_ADDRESS",
        metavar="HOST:PORT[,ENROLMENT_PORT]",
        help="The online CA on another machine, which issues and renews the identity and distributes trust anchors and "
        "CRLs. ENROLMENT_PORT: default PORT + 1. Repeatable, for CAs that stand in for each other; in the environment "
        "several are separated by spaces.",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--join-token-file",
        envvar="SLUICE_JOIN_TOKEN_FILE",
        help="File (mode 0600) with the join token for the first start; it is removed after use.",
    ),
]
PodTokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--pod-token-file",
        envvar="SLUICE_POD_TOKEN_FILE",
        help="In a pod, in place of a join token: projected service account token with audience "
        "spiffe://TRUST-DOMAIN/ca, which the CA has Kubernetes verify. Needs --ca-anchors.",
    ),
]
AnchorsOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-anchors",
        envvar="SLUICE_CA_ANCHORS",
        help="PEM file with the CA's trust anchors, such as the mounted ConfigMap that ca.kubernetes.trust_config_map "
        "names; the pod's token is sent to no other CA. Waited for while it is missing.",
    ),
]
AgentTokensOption = Annotated[
    list[str] | None,
    typer.Option(
        "--join-token-file",
        envvar="SLUICE_JOIN_TOKEN_FILE",
        metavar="[ROLE/NAME=]FILE",
        help="File (mode 0600) with the join token of an identity that is not there yet; removed after use, "
        "repeatable. Without ROLE/NAME: of the only one of the policy.",
    ),
]
EdgeTokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--edge-token-file",
        envvar="SLUICE_EDGE_TOKEN_FILE",
        help="Join token for the public certificate, created with --edge-server.",
    ),
]
JoinDnsOption = Annotated[
    list[str] | None, typer.Option("--dns", help="Host name that the join token was created with; repeatable.")
]
JoinIpOption = Annotated[
    list[str] | None, typer.Option("--ip", help="Address that the join token was created with; repeatable.")
]

JobManagerOption = Annotated[
    str | None,
    typer.Option(
        "--jobmanager",
        envvar="SLUICE_JOBMANAGER",
        metavar="HOST:PORT[,HOST:PORT…]",
        help="The JobManagers on other machines (their jobmanager.host and rpc_port), of which one leads; by default "
        "the leader of this home.",
    ),
]


@dataclass(frozen=True, slots=True)
class Joining:
    """The options of a joining process: the authorities, its credential, and its host names."""

    cas: tuple[CaAddress, ...]
    credential: JoinCredential | None
    dns: tuple[str, ...]
    ips: tuple[str, ...]

    def locate(self) -> tuple[CaAddress, ...]:
        """The addresses of the authorities."""
        return self.cas


def joining(
    ca: Sequence[str] | None, credential: JoinCredential | None, dns: Sequence[str] | None, ips: Sequence[str] | None
) -> Joining | None:
    """Check the options; None: the process uses the identity that `sluice up` puts into the home."""
    if not ca:
        # The environment may name a file for all processes of a machine; names are only for this command.
        if dns or ips:
            raise UsageError("--dns and --ip are for a process that joins", "give the CA with --ca")
        return None
    try:
        addresses = parse_cas(ca)
    except PkiError as error:
        raise UsageError(f"--ca: {error.what}", error.remedy) from error
    return Joining(addresses, credential, tuple(dns or ()), tuple(ips or ()))


def join_credential(
    token_file: Path | None, pod_token_file: Path | None, anchors: Path | None
) -> JoinCredential | None:
    """The credential of a process at its first start; None: it has an identity already."""
    if pod_token_file is None:
        return None if token_file is None else JoinTokenFile(token_file)
    if token_file is not None:
        raise UsageError("--join-token-file and --pod-token-file exclude each other", "use one of them")
    if anchors is None:
        raise UsageError("--pod-token-file needs --ca-anchors", "the token is shown only to a CA that is trusted")
    return PodTokenFile(pod_token_file, anchors)


def jobmanager_addresses(text: str | None) -> tuple[tuple[str, int], ...]:
    """The addresses of ``--jobmanager``; empty: the leader is announced in the home."""
    if text is None:
        return ()
    try:
        return tuple(parse_address(each.strip()) for each in text.split(","))
    except PkiError as error:
        raise UsageError(f"--jobmanager: {error.what}", "as in jobmanager.example.org:6123") from error


def _credentials(spiffe_id: SpiffeId, credential: JoinCredential | None) -> dict[SpiffeId, JoinCredential]:
    return {} if credential is None else {spiffe_id: credential}


def agent_tokens(texts: Sequence[str], policy: AgentPolicy, trust_domain: str) -> dict[SpiffeId, JoinTokenFile]:
    """The tokens of an agent's identities, from ``[ROLE/NAME=]FILE`` each."""
    managed = {one.spiffe_id for one in policy.identities}
    tokens: dict[SpiffeId, JoinTokenFile] = {}
    for text in texts:
        name, named, file = text.rpartition("=")
        if not named and len(managed) != 1:
            raise UsageError(f"whose join token is {text[:200]}?", "say so: ROLE/NAME=FILE")
        spiffe_id = SpiffeId.parse(f"spiffe://{trust_domain}/{name}") if named else next(iter(managed))
        if spiffe_id not in managed:
            raise UsageError(f"{spiffe_id} is not in the policy", f"one of {', '.join(sorted(map(str, managed)))}")
        tokens[spiffe_id] = JoinTokenFile(Path(file))
    return tokens


def own_identity(home: Home, config: PkiConfig, join: Joining | None, role: Role, name: str) -> list[EnrolledIdentity]:
    """The internal identity of a joining process, at its place below ``home``; empty if it does not join."""
    if join is None:
        return []
    spiffe_id = SpiffeId.process(config.trust_domain, role, name)
    names = Names.checked(spiffe_id, join.dns, join.ips)
    identity = ManagedIdentity(spiffe_id, home.identity(role, name), dns=names.dns, ips=names.ips)
    return [
        EnrolledIdentity(
            identity,
            EnrollingIssuer(join.locate, _credentials(spiffe_id, join.credential), algorithm=config.key_algorithm),
        )
    ]


def gateway_identities(
    home: Home, config: PkiConfig, join: Joining | None, edge_token_file: Path | None, name: str = ENVOY_NAME
) -> list[EnrolledIdentity]:
    """The identities of a joining Envoy: its internal one, only for dialing, and its public certificate."""
    if join is None:
        return []
    inside = own_identity(home, config, replace(join, dns=(), ips=()), Role.GATEWAY, name)
    spiffe_id = SpiffeId.process(config.trust_domain, Role.GATEWAY, EDGE_NAME)
    names = Names.checked(spiffe_id, join.dns, join.ips)
    public_credential = JoinTokenFile(edge_token_file) if edge_token_file is not None else _of_both(join.credential)
    public = ManagedIdentity(spiffe_id, home.identity(Role.GATEWAY, EDGE_NAME), dns=names.dns, ips=names.ips)
    issuer = EdgeEnrollingIssuer(
        inside[0].identity.directory,
        join.locate,
        _credentials(spiffe_id, public_credential),
        algorithm=config.key_algorithm,
    )
    return [*inside, EnrolledIdentity(public, issuer, AuthorityKind.EDGE)]


def _of_both(credential: JoinCredential | None) -> JoinCredential | None:
    """The credential if it is valid for both identities: a pod's token is, a join token is not."""
    return credential if isinstance(credential, PodTokenFile) else None


async def joined(
    home: Home, join: Joining | None, kept: Sequence[EnrolledIdentity], main: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Get the identities of ``kept``, then run ``main`` and renew them as long as it runs.

    Without ``join`` just run ``main``: another process renews the identities.
    """
    if join is None:
        await main()
        return
    home.create()
    keeper = RenewalService(kept, subscribed_trust(home, join.locate, kept))
    try:
        await keeper.start()
        await run_with_background(keeper.run(), main())
    finally:
        await keeper.close()
