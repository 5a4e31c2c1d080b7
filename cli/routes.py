"""The routes that REST publishes, put where the auth service looks for them."""

from __future__ import annotations

import json

from gateway.operations import known_operations
from gateway.policy import Policy
from gateway.policy_file import policy_file, read_policy
from gateway.routes import Route
from pki.files import write_secret
from pki.home import Home


def publish_routes(home: Home) -> None:
    """Write REST's own list: nothing else is let through."""
    from gateway.assembly import route_file
    from runtime.rest.routes import published_routes

    home.create()
    write_secret(route_file(home), json.dumps(published_routes()).encode())


def effective_policy(home: Home, configured: str = "") -> Policy:
    """The policy that an auth service of ``home`` would have, with the operations of this version."""
    return read_policy(policy_file(home, configured), operations())


def operations() -> frozenset[str]:
    """Every operation of this version: REST's, and the gateway's own."""
    from runtime.rest.routes import ROUTES

    return known_operations(Route(route.method, route.path, route.operation) for route in ROUTES)
