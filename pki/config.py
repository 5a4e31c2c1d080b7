"""Settings of the PKI (section ``[pki]`` of ``sluice.toml``)."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec


class PkiConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lifetimes are in hours unless the name says otherwise."""

    trust_domain: str = "sluice.local"
    key_algorithm: str = "ecdsa-p256"
    root_days: int = 3650
    authority_days: int = 365
    leaf_hours: float = 24.0
    """Lifetime of certificates issued without one; a renewal keeps the lifetime of the certificate that it replaces."""
    max_leaf_hours: Annotated[float, msgspec.Meta(ge=1 / 60, le=398 * 24)] = 398.0 * 24
    """Longest lifetime of a leaf, issued or renewed: lower it to shorten renewals too."""
    job_hours: float = 1.0
    backdate_minutes: float = 5.0
    crl_hours: float = 24.0
    internal_names: tuple[str, ...] = ()
    """DNS domains and networks that the internal authority may certify; a type that is not listed is unrestricted."""
    edge_names: tuple[str, ...] = ()
    """The same for the edge authority."""
    token_issuer: str = ""
    """Public URL of the gateway, ``https://sluice.example.com``: the issuer in the tokens that identify jobs to other
    services, and where the gateway serves the keys. Empty: no issuer, and no keys are served."""
    token_algorithm: Literal["ES256", "RS256"] = "ES256"  # noqa: S105  names of algorithms
    """Signature algorithm of those tokens; some services support only RS256."""
    token_minutes: Annotated[float, msgspec.Meta(ge=1, le=60)] = 5.0
    """Lifetime of such a token."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.token_issuer)
        if self.token_issuer and (
            parts.scheme != "https"
            or not parts.hostname
            or parts.username is not None
            or parts.path
            or parts.query
            or parts.fragment
        ):
            raise ValueError("token_issuer must be a URL as https://sluice.example.com, without a slash at the end")
