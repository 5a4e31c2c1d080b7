"""Shared between REST and the auth service: REST's routes, and the address of the auth service."""

from __future__ import annotations

import json

from sluice.cli.config import Configuration
from sluice.core import Home, write_secret
from sluice.gateway.authz import Policy, Route, known_operations, read_policy
from sluice.gateway.authz.policy_file import policy_file


def publish_routes(home: Home) -> None:
    """Write the list of REST's routes: the gateway refuses all others."""
    from sluice.gateway.service import route_file
    from sluice.runtime.rest_server import published_routes

    home.create()
    write_secret(route_file(home), json.dumps(published_routes()).encode())


def effective_policy(home: Home, configured: str = "") -> Policy:
    """The policy that an auth service of ``home`` would have, with the operations of this version."""
    return read_policy(policy_file(home, configured), operations())


def operations() -> frozenset[str]:
    """Every operation of this version: REST's, and the gateway's own."""
    from sluice.runtime.rest_server import PUBLISHED

    return known_operations(Route(route.method, route.path, route.operation) for route in PUBLISHED)


def auth_addresses(configuration: Configuration) -> list[tuple[str, int]] | None:
    """The addresses of auth services on other machines; None: it is on this machine, in the same home."""
    return configuration.gateway.auth_places or None
