"""The gateway of the integration tests, for tests that take longer."""

from __future__ import annotations

from tests.integration.gateway.conftest import background, edge_authority, running_gateway

__all__ = ["background", "edge_authority", "running_gateway"]
