"""The xDS protocol as values: what is sent and when, what answers mean, and what is reported."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.core.grpc.server import Caller
from sluice.core.home import Home
from sluice.core.xds.messages import (
    CLUSTER,
    EXTENSION,
    REQUEST,
    RESPONSE,
    ROUTES,
    SECRET,
    XdsError,
    decode,
    from_json,
    message_class,
    to_json,
)
from sluice.core.xds.resources import Resources
from sluice.core.xds.snapshot import SnapshotBoard
from sluice.core.xds.subscription import (
    MAX_REASON_CHARACTERS,
    Heard,
    Subscription,
    readable,
)
from sluice.gateway.envoy_config.revocations import revocation_filter
from sluice.gateway.xds.service import _admits
from sluice.gateway.xds.status import XdsStatus, read_status, status_file
from sluice.pki.spiffe_id import Role, SpiffeId


def clusters(*names: str) -> Resources:
    return Resources.of({name: from_json(CLUSTER, {"name": name}) for name in names})


def request(*names: str, nonce: str = "", error: str = "") -> object:
    made = message_class(REQUEST)(resource_names=names, response_nonce=nonce)
    if error:
        made.error_detail.message = error
    return made


def sent(subscription: Subscription, resources: Resources | None) -> tuple[str, list[str]] | None:
    """Return nonce and resource names of the next response, or None."""
    data = subscription.answer(resources)
    if data is None:
        return None
    response = decode(RESPONSE, data)
    names = [message_class(subscription.kind).FromString(each.value).name for each in response.resources]
    return response.nonce, names


def test_a_field_that_envoy_does_not_know_is_refused_and_named() -> None:
    with pytest.raises(XdsError, match=r'not a Cluster.*"conect_timeout"'):
        from_json(CLUSTER, {"name": "a", "conect_timeout": "1s"})
    with pytest.raises(XdsError, match="not a RouteConfiguration"):
        from_json(ROUTES, {"virtual_hosts": "all"})
    with pytest.raises(XdsError, match="not among the descriptors"):
        message_class("envoy.made.up.v3.Thing")


def test_an_unknown_field_in_a_nested_extension_is_refused() -> None:
    wrong = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router", "supress": True}
    with pytest.raises(XdsError, match="supress"):
        from_json(EXTENSION, {"name": "router", "typed_config": wrong})


def test_equal_content_has_an_equal_version() -> None:
    assert clusters("a", "b") == clusters("b", "a")
    assert clusters("a").version != clusters("b").version != clusters().version


def test_resources_are_sent_once_and_again_only_after_a_change() -> None:
    subscription = Subscription(CLUSTER)
    assert subscription.hear(request()) is Heard.SUBSCRIBED
    assert sent(subscription, clusters("a", "b")) == ("1", ["a", "b"])
    assert subscription.hear(request(nonce="1")) is Heard.ACCEPTED
    assert sent(subscription, clusters("a", "b")) is None
    assert sent(subscription, clusters("b")) == ("2", ["b"])


def test_a_rejected_response_is_recorded_and_not_sent_again() -> None:
    subscription = Subscription(CLUSTER)
    subscription.hear(request())
    sent(subscription, clusters("a"))
    assert subscription.hear(request(nonce="1", error="no\nsuch field")) is Heard.REJECTED
    assert subscription.rejected == "no such field"
    assert sent(subscription, clusters("a")) is None
    assert sent(subscription, clusters("better")) == ("2", ["better"])
    assert subscription.hear(request(nonce="1", error="late")) is Heard.STALE
    assert subscription.hear(request(nonce="2")) is Heard.ACCEPTED
    assert subscription.rejected == ""


def test_a_request_for_named_resources_waits_until_they_exist() -> None:
    subscription = Subscription(EXTENSION)
    subscription.hear(request("revocations"))
    assert sent(subscription, None) is None
    assert sent(subscription, Resources.of({})) is None
    ready = Resources.of({name: from_json(EXTENSION, {"name": name}) for name in ("revocations", "other")})
    assert sent(subscription, ready) == ("1", ["revocations"])
    subscription.hear(request("revocations", "other", nonce="1"))
    assert sent(subscription, ready) == ("2", ["revocations", "other"])


def test_a_reconnecting_client_is_sent_everything() -> None:
    """A new stream has no state: even a first request that names a version is answered in full."""
    subscription = Subscription(SECRET)
    subscription.hear(message_class(REQUEST)(resource_names=["edge"], version_info="old"))
    secret = from_json(SECRET, {"name": "edge"})
    assert sent(subscription, Resources.of({"edge": secret})) == ("1", ["edge"])


@given(st.text())
def test_rejection_reasons_are_bounded_and_printable(text: str) -> None:
    assert len(readable(text)) <= MAX_REASON_CHARACTERS + 5
    assert readable(text).isprintable()


def test_revoked_ids_are_looked_up_in_the_headers_of_the_access_token() -> None:
    made = to_json(revocation_filter([("pass", "p1"), ("token", "t1"), ("session", "s1"), ("user", "eve")]))
    text = json.dumps(made)
    for header, ids in {"x-sluice-pass-id": ["p1"], "x-sluice-credential": ["t1", "s1"]}.items():
        assert header in text
        assert all(json.dumps(each) in text for each in ids)
    assert "x-sluice-principal" in text
    assert text.count('"DENY"') == 4


def test_the_revocation_filter_is_empty_when_nothing_is_revoked() -> None:
    assert to_json(revocation_filter([]))["typed_config"].keys() == {"@type"}


async def test_the_snapshot_board_wakes_waiters_only_for_a_changed_snapshot() -> None:
    board = SnapshotBoard()
    waiting = asyncio.ensure_future(board.change())
    assert board.publish({CLUSTER: clusters("a")}) == (CLUSTER,)
    await asyncio.wait_for(waiting, 5)
    unmoved = asyncio.ensure_future(board.change())
    assert board.publish({CLUSTER: clusters("a")}) == ()
    await asyncio.sleep(0)
    assert not unmoved.done()
    unmoved.cancel()


def test_the_status_file_keeps_problems_until_they_are_resolved(tmp_path: Path) -> None:
    path = status_file(Home.at(tmp_path), "auth")
    status = XdsStatus(path, clock=lambda: 7.0)
    status.sent(CLUSTER, "v1")
    status.rejected(CLUSTER, "v1", "because")
    status.refused("policy", "line 3")
    document = read_status(path)
    assert document is not None
    assert document.problems == ["policy refused: line 3", "Envoy rejected clusters v1: because"]
    assert path.stat().st_mode & 0o777 == 0o600
    status.sent(CLUSTER, "v2")
    status.accepted(CLUSTER, "v2")
    status.accepted_input("policy")
    document = read_status(path)
    assert document is not None
    assert document.problems == []
    status.close()
    assert read_status(path) is None


def test_the_status_command_fails_without_an_xds_server_or_with_problems(tmp_path: Path) -> None:
    runner = CliRunner()
    assert "no xDS server runs" in str(runner.invoke(app, ["gateway", "status", "--home", str(tmp_path)]).exception)
    status = XdsStatus(status_file(Home.at(tmp_path), "auth"))
    status.sent(CLUSTER, "v1")
    status.accepted(CLUSTER, "v1")
    fine = runner.invoke(app, ["gateway", "status", "--home", str(tmp_path)])
    assert (fine.exit_code, "in use" in fine.output) == (0, True)
    status.refused("policy", "line 3")
    bad = runner.invoke(app, ["gateway", "status", "--home", str(tmp_path), "--json"])
    assert bad.exit_code == 1
    assert json.loads(bad.output)["problems"] == ["policy refused: line 3"]


@pytest.mark.parametrize(
    ("caller", "admitted"),
    [
        pytest.param(Caller(1, os.geteuid(), 1), True, id="own user"),
        pytest.param(Caller(1, os.geteuid() + 1, 1), False, id="another user"),
        pytest.param(Caller(-1, -1, -1, str(SpiffeId.process("td", Role.GATEWAY, "envoy"))), True, id="gateway"),
        pytest.param(Caller(-1, -1, -1, str(SpiffeId.process("td", Role.JOBMANAGER, "jm-1"))), False, id="JobManager"),
    ],
)
def test_only_gateways_and_the_own_user_may_fetch_the_envoy_configuration(caller: Caller, admitted: bool) -> None:
    """JobManagers may connect to the same port, but only for the keys of assertions."""
    assert _admits(caller) is admitted
