"""Settings of the listener for external proxies (table ``[gateway.ext_authz]``)."""

from __future__ import annotations

import msgspec

MAX_EXT_AUTHZ_CLIENTS = 64


class ExtAuthzConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A listener for your own proxies (Envoy Gateway, Istio, Contour), which call the auth service by gRPC."""

    host: str
    """Address or host name to listen on."""
    port: int = 8083
    """Port of the first auth service. Each further auth service uses the next port."""
    clients: tuple[str, ...]
    """SPIFFE IDs of the proxies, as in ``spiffe://sluice.local/gateway/edge-1``. Other clients are refused."""

    def __post_init__(self) -> None:
        if not self.clients:
            raise ValueError("clients must name the proxies that may call the listener")
        if len(self.clients) > MAX_EXT_AUTHZ_CLIENTS:
            raise ValueError(f"clients has more than {MAX_EXT_AUTHZ_CLIENTS} names")

    def of_number(self, number: int) -> ExtAuthzConfig:
        """The settings for auth service ``number``: the second one listens on the next port, and so on."""
        port = self.port + number - 1 if self.port else 0
        return msgspec.structs.replace(self, port=port)
