"""Settings of auth services on several machines: what cannot work is refused when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluice.core import Home
from sluice.gateway.config import GatewayConfig
from sluice.gateway.proxy.bootstrap import EnvoyPaths, upstreams_of
from sluice.gateway.upstreams import TlsUpstream, discovery_type
from sluice.pki import Role

STORE: dict[str, Any] = {
    "hosts": ["db-1.test:5432", "[::1]:5433"],
    "password_file": "/etc/sluice/password",
    "encryption_key_file": "/etc/sluice/store.key",
}
MACHINES: dict[str, Any] = {
    "auth_host": "auth-a.test",
    "auth_addresses": ["auth-a.test:8082", "192.0.2.2:8082"],
    "shared_store": STORE,
}


def read(**settings: object) -> GatewayConfig:
    return msgspec.convert(settings, GatewayConfig)


def test_store_addresses_are_parsed_and_envoy_reaches_every_auth_service() -> None:
    config = read(**MACHINES)
    assert config.shared_store is not None
    assert config.shared_store.addresses == [("db-1.test", 5432), ("::1", 5433)]
    assert config.has_several_auth_services
    upstreams = upstreams_of(config, EnvoyPaths.of(Home.at(Path("/nowhere"))))
    assert (upstreams.auth, *upstreams.more_auth) == (
        TlsUpstream("auth-a.test", 8082, Role.AUTH),
        TlsUpstream("192.0.2.2", 8082, Role.AUTH),
    )
    assert discovery_type(upstreams.more_auth[0]) == "STATIC"
    assert discovery_type(upstreams.more_auth[0], upstreams.auth) == "STRICT_DNS", "one name is enough"


def test_one_auth_host_or_none_is_not_several_auth_services() -> None:
    assert read().auth_places == []
    assert read(auth_host="a.test").auth_places == [("a.test", 8082)]
    assert not read(auth_host="a.test").has_several_auth_services


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shared_store": None}, "needs auth_host and the table shared_store"),
        ({"auth_host": ""}, "needs auth_host and the table shared_store"),
        ({"auth_services": 2, "auth_host": ""}, "auth_services to be 1"),
        ({"auth_addresses": ["a.test:1", "a.test:1"]}, "the same address twice"),
        ({"auth_addresses": ["a.test"]}, "must be as in"),
        ({"auth_addresses": ["user@a.test:1"]}, "must be as in"),
        ({"auth_addresses": [f"a-{number}.test:1" for number in range(17)]}, "more than 16"),
        ({"envoy_machines": 0}, "envoy_machines must be"),
        ({"shared_store": STORE | {"hosts": []}}, "1 to 8 servers"),
        ({"shared_store": STORE | {"hosts": ["db:0"]}}, "must be as in"),
        ({"shared_store": STORE | {"hosts": ["db:5432/x"]}}, "must be as in"),
        ({"shared_store": STORE | {"password_file": ""}}, "to sign in to the database"),
        ({"shared_store": STORE | {"certificate_file": "/c.pem"}}, "belong together"),
        ({"shared_store": STORE | {"encryption_key_file": "key"}}, "absolute path"),
        ({"shared_store": STORE | {"stale_after": 3600}}, "stale_after must be"),
        ({"shared_store": STORE | {"password": "in the open"}}, "unknown field"),
    ],
)
def test_invalid_shared_store_settings_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        read(**{**MACHINES, **change})
