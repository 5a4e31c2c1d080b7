"""All auth services send Envoy the same resources, so an Envoy that switches has nothing to change."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from sluice.core.home import Home
from sluice.gateway.config import GatewayConfig, auth_names, auth_number, envoy_names
from sluice.gateway.envoy_config.filters import http_filters
from sluice.gateway.envoy_config.limits import rate_limit
from sluice.gateway.envoy_config.routes import Grants, route_configuration
from sluice.gateway.errors import BootstrapError
from sluice.gateway.proxy.bootstrap import EnvoyPaths, auth_service_path
from tests.unit.gateway.envoy_config.test_bootstrap import PATHS, clusters, listener, nodes, rendered

TWO = GatewayConfig(auth_services=2, envoys=2)
VERSIONS = """
from pathlib import Path
from sluice.core import Home
from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config import SOURCE, EdgeInputs, Grants, edge_documents, edge_resources, extension_resources
from sluice.gateway.envoy_config import load_source
from sluice.gateway.authz import Route
from sluice.gateway.proxy import EnvoyPaths, upstreams_of

config = GatewayConfig(auth_services=2, envoys=2, cors_origins=("https://a.test", "https://b.test"))
upstreams = upstreams_of(config, EnvoyPaths.of(Home(Path("/home/of/cluster"))))
routes = tuple(Route("GET", f"/v1/{name}/{{id}}", f"{name}.read") for name in ("jobs", "blobs", "queues", "events"))
grants = Grants({role: frozenset({"jobs.read", "blobs.read", "queues.read"}) for role in ("a", "b", "c")}, "digest")
inputs = EdgeInputs(config, "test", upstreams, load_source(SOURCE), routes, grants)
found = edge_resources(edge_documents(inputs)) | extension_resources({"keys": []}, [("token", "t-1"), ("user", "u")])
print(sorted((kind, each.version) for kind, each in found.items()))
"""


def test_resource_versions_are_the_same_in_every_process() -> None:
    """Maps are ordered differently in each process; the serialized bytes must not differ."""
    told = {
        subprocess.run([sys.executable, "-P", "-c", VERSIONS], capture_output=True, check=True).stdout for _ in "123"
    }
    assert len(told) == 1
    assert b"Listener" in told.pop()


def test_envoy_is_configured_with_every_auth_service() -> None:
    (auth,) = (each for each in clusters(TWO) if each["name"] == "auth")
    paths = [
        each["endpoint"]["address"]["pipe"]["path"] for each in auth["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    assert paths == ["/home/of/cluster/run/sock/auth.sock", "/home/of/cluster/run/sock/auth-2.sock"]
    static = rendered(TWO)["static_resources"]["clusters"]
    (xds,) = (each for each in static if each["name"] == "xds")
    paths = [
        each["endpoint"]["address"]["pipe"]["path"] for each in xds["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ]
    assert paths == ["/home/of/cluster/run/sock/xds.sock", "/home/of/cluster/run/sock/xds-2.sock"]


def test_a_single_auth_service_is_not_retried() -> None:
    assert "retry_policy" not in str(http_filters(GatewayConfig()))
    assert "retry_policy" not in str(route_configuration(GatewayConfig(), (), Grants({})))


def test_only_idempotent_requests_are_retried_at_another_auth_service() -> None:
    routes: Any = route_configuration(TWO, (), Grants({}))["virtual_hosts"]
    retried = {
        (
            str(each["match"].get("path") or each["match"].get("path_separated_prefix")),
            "headers" in each["match"],
        ): each["route"]["retry_policy"]["retry_on"]
        for each in routes[0]["routes"]
        if each.get("route", {}).get("cluster") == "auth"
    }
    assert retried[("/auth", True)] == retried["/auth/exchange", False] == "connect-failure,refused-stream,reset,5xx"
    assert retried[("/auth", False)] == "connect-failure,refused-stream,reset-before-request"
    asking = [node["http_service"]["retry_policy"] for node in nodes(http_filters(TWO)) if "http_service" in node]
    assert len(asking) == 2
    # Envoy takes the longest pause for the time of one try: a service that hangs leaves time to ask another.
    assert {each["retry_back_off"]["max_interval"] for each in asking} == {"0.250s"}


def test_port_reuse_is_enabled_only_with_several_envoys() -> None:
    assert listener()["enable_reuse_port"] is False
    assert listener(TWO)["enable_reuse_port"] is True


def test_several_envoys_together_have_the_rate_limit_of_one() -> None:
    def buckets(config: GatewayConfig) -> list[tuple[int, int]]:
        (limit,) = rate_limit(config)
        typed: Any = limit["typed_config"]
        given = [each["token_bucket"] for each in typed["descriptors"]]
        return [(each["max_tokens"], each["tokens_per_fill"]) for each in given]

    one, two = buckets(GatewayConfig()), buckets(TWO)
    assert [(2 * burst, 2 * fill) for burst, fill in two] == one


def test_each_envoy_has_its_own_files_and_shares_the_service_sockets() -> None:
    second = EnvoyPaths.of(Home(PATHS.bootstrap.parents[2]), "envoy-2")
    assert (second.auth_socket, second.xds_socket, second.rest_socket) == (
        PATHS.auth_socket,
        PATHS.xds_socket,
        PATHS.rest_socket,
    )
    own = (second.admin_socket, second.sds_socket, second.bootstrap, second.access_log)
    assert not set(own) & {PATHS.admin_socket, PATHS.sds_socket, PATHS.bootstrap, PATHS.access_log}
    assert auth_service_path(PATHS.auth_socket, 1) == PATHS.auth_socket


def test_auth_services_and_envoys_are_numbered_by_name() -> None:
    assert (auth_names(TWO), envoy_names(TWO)) == (["auth-1", "auth-2"], ["envoy", "envoy-2"])
    assert [auth_number(TWO, name) for name in auth_names(TWO)] == [1, 2]
    assert auth_number(GatewayConfig(), "whatever") == 1
    with pytest.raises(BootstrapError, match="auth-3"):
        auth_number(TWO, "auth-3")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auth_services": 0}, "auth_services"),
        ({"auth_services": 9}, "auth_services"),
        ({"auth_services": 2, "auth_host": "auth.internal"}, "auth_host must be empty"),
        ({"envoys": 0}, "envoys"),
        ({"envoys": 2, "port": 0}, "fixed TCP port"),
        ({"envoys": 2, "http3": True}, "fixed TCP port"),
    ],
)
def test_invalid_counts_of_auth_services_and_envoys_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GatewayConfig(**settings)
