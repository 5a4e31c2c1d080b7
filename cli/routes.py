"""The routes that REST publishes, put where the auth service looks for them."""

from __future__ import annotations

import json

from pki.files import write_secret
from pki.home import Home


def publish_routes(home: Home) -> None:
    """Write REST's own list: nothing else is let through."""
    from gateway.process import route_file
    from runtime.rest.routes import published_routes

    home.create()
    write_secret(route_file(home), json.dumps(published_routes()).encode())
