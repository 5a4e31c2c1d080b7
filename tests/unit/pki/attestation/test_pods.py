"""The API server's review of a token identifies one pod and its identities, or nothing."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from sluice.pki.attestation.config import PodAttestationConfig, PodIdentity
from sluice.pki.attestation.pods import (
    MAX_POD_TOKEN_BYTES,
    Pod,
    attested,
    audience,
    refusal_in,
    review_of,
    reviewed_pod,
)
from sluice.pki.errors import AttestationUnavailable, EnrolmentRefused

WANTED = audience("td")
UID = "0a1b2c3d-0000-4000-8000-0123456789ab"
POD = Pod("sluice", "workers", "tm-0", UID)
TOKEN = "aaaa.bbbb.cccc"  # noqa: S105  the shape of one


def answer(**changes: Any) -> bytes:
    """Return the review of a good token with these changes."""
    status: dict[str, Any] = {
        "authenticated": True,
        "audiences": [WANTED],
        "user": {
            "username": "system:serviceaccount:sluice:workers",
            "uid": "x",
            "groups": ["system:serviceaccounts"],
            "extra": {
                "authentication.kubernetes.io/pod-name": ["tm-0"],
                "authentication.kubernetes.io/pod-uid": [UID],
            },
        },
    }
    for key, value in changes.items():
        place = status["user"] if key in {"username", "extra"} else status
        if value is None:
            place.pop(key)
        else:
            place[key] = value
    return json.dumps({"kind": "TokenReview", "metadata": {}, "spec": {"token": TOKEN}, "status": status}).encode()


def extra(name: object = "tm-0", uid: object = UID) -> dict[str, object]:
    """Return what the review says about the pod."""
    return {
        "authentication.kubernetes.io/pod-name": [name] if isinstance(name, str) else name,
        "authentication.kubernetes.io/pod-uid": [uid] if isinstance(uid, str) else uid,
    }


def test_a_bound_token_for_our_audience_identifies_one_pod() -> None:
    assert reviewed_pod(answer(), WANTED) == POD
    assert str(POD) == f"pod:sluice/workers/tm-0/{UID}"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"authenticated": False}, id="not authenticated"),
        pytest.param({"authenticated": None}, id="nothing said"),
        pytest.param({"audiences": None}, id="an API server that knows no audiences"),
        pytest.param({"audiences": []}, id="no audience"),
        pytest.param({"audiences": ["https://kubernetes.default.svc"]}, id="another audience"),
        pytest.param({"audiences": [WANTED + "/x", WANTED[:-1]]}, id="audiences like ours"),
        pytest.param({"username": "admin"}, id="a user"),
        pytest.param({"username": "system:node:n1"}, id="a node"),
        pytest.param({"username": "system:serviceaccount:sluice:workers:more"}, id="a part too many"),
        pytest.param({"username": "system:serviceaccount:a/../sluice:workers"}, id="a path"),
        pytest.param({"username": " system:serviceaccount:sluice:workers"}, id="a space before"),
        pytest.param({"username": "system:serviceaccount:sluice:workers\n"}, id="a newline after"),
        pytest.param({"extra": None}, id="not bound"),
        pytest.param({"extra": {}}, id="bound to nothing"),
        pytest.param({"extra": extra(uid=[])}, id="no uid"),
        pytest.param({"extra": extra(name=["tm-0", "tm-1"])}, id="two pods"),
        pytest.param({"extra": extra(uid="../../x")}, id="a uid that is none"),
        pytest.param({"extra": extra(name="TM/0")}, id="a name that is none"),
    ],
)
def test_a_token_that_the_review_does_not_confirm_for_one_pod_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(EnrolmentRefused):
        reviewed_pod(answer(**changes), WANTED)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"<html>", b'{"status": 1}', b'{"status": {"authenticated": "yes"}}', b"\xff"]
)
def test_a_malformed_token_review_is_unavailable_rather_than_refused(text: bytes) -> None:
    """The pod is not to blame, and tries again."""
    with pytest.raises(AttestationUnavailable):
        reviewed_pod(text, WANTED)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "a.b.c.d",
        "a.b.c\n",
        "a b.c.d",
        pytest.param("a." + "b" * MAX_POD_TOKEN_BYTES + ".c", id="too long"),
        pytest.param("slj_000000000000_x_y", id="a join token"),
    ],
)
def test_a_malformed_token_is_not_sent_to_the_api_server(token: str) -> None:
    with pytest.raises(EnrolmentRefused) as refused:
        review_of(token, WANTED)
    assert not token or token not in str(refused.value)


def test_the_logged_refusal_contains_no_part_of_the_token() -> None:
    text = f"invalid bearer token {TOKEN}: [bbbb, audiences wrong\n]"
    reason = refusal_in(answer(authenticated=False, error=text), TOKEN)
    assert reason.startswith("invalid bearer token")
    assert "audiences wrong?" in reason
    assert not any(part in reason for part in (TOKEN, *TOKEN.split(".")))
    assert refusal_in(b"x", TOKEN) == ""


def config(*rules: dict[str, Any]) -> PodAttestationConfig:
    """Return a configuration as in sluice.toml."""
    return msgspec.convert({"identities": list(rules)}, PodAttestationConfig)


WORKERS = {"namespace": "sluice", "service_account": "workers", "role": "taskmanager"}


def test_a_pod_has_only_the_identities_of_its_service_account() -> None:
    rules = config(
        WORKERS | {"dns": ["{pod}.workers.{namespace}.svc"]},
        {"namespace": "sluice", "service_account": "envoy", "role": "gateway", "name": "envoy"},
    ).identities
    found = attested(POD, rules, "td")
    (grant,) = found.grants
    assert str(grant.names.spiffe_id) == "spiffe://td/taskmanager/tm-0"
    assert grant.names.dns == ("tm-0.workers.sluice.svc",)
    assert found.instance == UID
    assert found.grant("spiffe://td/taskmanager/tm-0", edge_server=False) is grant
    for identity in ("spiffe://td/taskmanager/tm-1", "spiffe://td/jobmanager/tm-0", "spiffe://td/gateway/envoy", ""):
        with pytest.raises(EnrolmentRefused, match="may not have"):
            found.grant(identity, edge_server=False)
    with pytest.raises(EnrolmentRefused, match="may not have"):
        found.grant("spiffe://td/taskmanager/tm-0", edge_server=True)


@pytest.mark.parametrize(
    "pod",
    [
        Pod("other", "workers", "tm-0", UID),
        Pod("sluice", "worker", "tm-0", UID),
        Pod("sluice", "default", "tm-0", UID),
    ],
)
def test_a_pod_without_a_matching_rule_gets_no_identity(pod: Pod) -> None:
    with pytest.raises(EnrolmentRefused, match="has no identity"):
        attested(pod, config(WORKERS).identities, "td")
    with pytest.raises(EnrolmentRefused, match="has no identity"):
        attested(pod, (), "td")


def test_wildcard_rules_give_pods_of_different_namespaces_different_names() -> None:
    rules = config(WORKERS | {"namespace": "*", "name": "{namespace}.{pod}"}).identities
    names = {
        str(attested(Pod(namespace, "workers", pod, UID), rules, "td").grants[0].names.spiffe_id.name)
        for namespace, pod in (("a", "b.c"), ("a", "b"), ("a-b", "c"))
    }
    assert names == {"a.b.c", "a.b", "a-b.c"}


def test_a_pod_name_that_does_not_fit_into_a_certificate_is_refused() -> None:
    rules = config(WORKERS | {"dns": [".".join(["{pod}"] * 10)]}).identities
    with pytest.raises(EnrolmentRefused, match="no identity can be made"):
        attested(Pod("sluice", "workers", "x" * 60, UID), rules, "td")


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param([WORKERS | {"namespace": "*", "service_account": "*"}], id="everybody"),
        pytest.param([WORKERS | {"namespace": "*"}], id="pods of all namespaces share names"),
        pytest.param([WORKERS | {"namespace": "slu*"}], id="a pattern"),
        pytest.param([WORKERS | {"service_account": "work*"}], id="a pattern of accounts"),
        pytest.param([WORKERS, WORKERS | {"namespace": "other"}], id="two namespaces share names"),
        pytest.param([WORKERS, WORKERS], id="twice"),
        pytest.param([WORKERS | {"role": "ca"}], id="a second authority"),
        pytest.param([WORKERS | {"role": "driver"}], id="a job"),
        pytest.param([WORKERS | {"role": "user"}], id="a user"),
        pytest.param([WORKERS | {"edge_server": True, "dns": ["a.example"]}], id="public, but no gateway"),
        pytest.param([WORKERS | {"role": "gateway", "edge_server": True}], id="public without names"),
        pytest.param([WORKERS | {"name": "{uid}"}], id="an unknown placeholder"),
        pytest.param([WORKERS | {"name": "{pod"}], id="half a placeholder"),
        pytest.param([{"role": "taskmanager"}], id="nobody named"),
        pytest.param([WORKERS | {"names": ["x"]}], id="an unknown key"),
    ],
)
def test_invalid_identity_rules_are_refused(rules: list[dict[str, Any]]) -> None:
    with pytest.raises(msgspec.ValidationError):
        config(*rules)


@pytest.mark.parametrize("key", [{"api": "http://kube:1"}, {"api": "https://u@kube"}, {"trust_config_map": "A/B"}])
def test_invalid_api_server_and_config_map_settings_are_refused(key: dict[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(key, PodAttestationConfig)


def test_a_rule_with_a_fixed_name_gives_successive_pods_the_same_identity() -> None:
    rule = PodIdentity(namespace="sluice", service_account="envoy", role="gateway", name="envoy")
    for name in ("envoy-0", "envoy-7d9f"):
        found = attested(Pod("sluice", "envoy", name, UID), [rule], "td")
        assert str(found.grants[0].names.spiffe_id) == "spiffe://td/gateway/envoy"
