"""The options of a process that joins an authority on another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cli.errors import UsageError
from sluice.cli.run.joining import (
    agent_tokens,
    gateway_identities,
    join_credential,
    joining,
    own_identity,
)
from sluice.core.errors import StoreError
from sluice.core.home import Home
from sluice.pki.agent.policy import AgentPolicy, ManagedIdentity
from sluice.pki.ca.address import parse_ca
from sluice.pki.config import PkiConfig
from sluice.pki.enrolment.join_token_file import JoinTokenFile
from sluice.pki.enrolment.pod_token_file import PodTokenFile
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind

CONFIG = PkiConfig(trust_domain="td")
WORKERS = [SpiffeId.process("td", Role.TASKMANAGER, f"tm-{number}") for number in (1, 2)]


@pytest.mark.parametrize(
    ("text", "mutual", "enrolment"),
    [
        ("ca.example.org:8444,8445", ("ca.example.org", 8444), ("ca.example.org", 8445)),
        ("ca.example.org:8444", ("ca.example.org", 8444), ("ca.example.org", 8445)),
        ("[::1]:1,2", ("::1", 1), ("::1", 2)),
        ("https://10.0.0.1:1, 2", ("10.0.0.1", 1), ("10.0.0.1", 2)),
    ],
)
def test_the_address_of_an_authority_is_parsed(text: str, mutual: tuple[str, int], enrolment: tuple[str, int]) -> None:
    address = parse_ca(text)
    assert (address.mutual, address.enrolment) == (mutual, enrolment)


@pytest.mark.parametrize("text", ["", "ca", "ca:0", "ca:1,x", "ca:1,0", "ca:1,2,3", "ca:1,ca:2", "::1:1", "ca:99999"])
def test_a_malformed_authority_address_is_refused(text: str) -> None:
    with pytest.raises(StoreError):
        parse_ca(text)
    with pytest.raises(UsageError):
        joining([text], None, None, None)


def test_several_authority_addresses_are_deduplicated_and_limited() -> None:
    join = joining(["ca:1,2", "[::1]:3", "ca:1,2"], None, None, None)
    assert join is not None
    assert [each.mutual for each in join.locate()] == [("ca", 1), ("::1", 3)]
    with pytest.raises(UsageError, match="9 addresses"):
        joining([f"ca:{port}" for port in range(1, 10)], None, None, None)


def test_without_an_authority_address_nothing_joins_and_names_are_refused() -> None:
    assert joining(None, JoinTokenFile(Path("token")), None, None) is None
    assert own_identity(Home(Path("/h")), CONFIG, None, Role.AUTH, "auth-1") == []
    assert gateway_identities(Home(Path("/h")), CONFIG, None, Path("token")) == []
    with pytest.raises(UsageError):
        joining(None, None, ["name.example"], None)


def test_envoy_has_an_internal_identity_without_names_and_an_edge_identity_with_names() -> None:
    join = joining(["ca:1,2"], JoinTokenFile(Path("inside")), ["cluster.example.org"], ["10.0.0.7"])
    inside, outside = gateway_identities(Home(Path("/h")), CONFIG, join, Path("outside"))
    assert (str(inside.identity.spiffe_id), inside.identity.dns, inside.identity.ips) == (
        "spiffe://td/gateway/envoy",
        (),
        (),
    )
    assert inside.side is AuthorityKind.INTERNAL
    assert (str(outside.identity.spiffe_id), outside.identity.dns, outside.identity.ips) == (
        "spiffe://td/gateway/edge",
        ("cluster.example.org",),
        ("10.0.0.7",),
    )
    assert outside.side is AuthorityKind.EDGE
    assert inside.identity.directory != outside.identity.directory


def test_a_pod_token_requires_the_anchors_of_the_authority() -> None:
    token, anchors = Path("token"), Path("ca.pem")
    assert join_credential(None, None, None) is None
    assert join_credential(token, None, None) == JoinTokenFile(token)
    assert join_credential(None, token, anchors) == PodTokenFile(token, anchors)
    with pytest.raises(UsageError, match="--ca-anchors"):
        join_credential(None, token, None)
    with pytest.raises(UsageError, match="exclude each other"):
        join_credential(token, token, anchors)


def test_join_tokens_of_an_agent_name_their_identity_if_there_are_several() -> None:
    both = AgentPolicy(tuple(ManagedIdentity(each, Path(each.name)) for each in WORKERS))
    one = AgentPolicy(both.identities[:1])
    assert [file.path for file in agent_tokens(["token"], one, "td").values()] == [Path("token")]
    tokens = agent_tokens(["taskmanager/tm-1=x", "taskmanager/tm-2=y"], both, "td")
    assert {each: file.path for each, file in tokens.items()} == {WORKERS[0]: Path("x"), WORKERS[1]: Path("y")}
    for wrong in ("token", "taskmanager/tm-3=x"):
        with pytest.raises(UsageError):
            agent_tokens([wrong], both, "td")
