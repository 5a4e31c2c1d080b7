"""The settings of a client: arguments first, then the environment variables of the ``sluice`` command."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sluice.client.access import SERVER_VARIABLE, GatewayAccess, resolve_access
from sluice.core import Home

HOME_VARIABLE = "SLUICE_HOME"
CA_VARIABLE = "SLUICE_CA"
DEFAULT_HOME = ".sluice"


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What identifies a gateway and the credential for it; None: see :func:`sluice.client.access.resolve_access`."""

    home: Home
    server: str | None
    ca: Path | None
    token_file: Path | None

    @classmethod
    def of(
        cls, server: str | None, home: str | Path | None, ca: str | Path | None, token_file: str | Path | None
    ) -> ClientSettings:
        """The settings that result from arguments and environment."""
        ca = ca or os.environ.get(CA_VARIABLE)
        return cls(
            Home.at(Path(home or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)),
            server or os.environ.get(SERVER_VARIABLE) or None,
            Path(ca) if ca else None,
            Path(token_file) if token_file else None,
        )

    def access(self) -> GatewayAccess:
        """Where the gateway is, what verifies it, and the credential.

        Raises:
            UsageError: no credential belongs to that gateway, or a setting is wrong.
            UnreachableError: no cluster runs in the home, and no server is named.
        """
        return resolve_access(self.home, server=self.server, ca_file=self.ca, token_file=self.token_file)
