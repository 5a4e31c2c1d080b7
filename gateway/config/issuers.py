"""Whom the gateway believes about who somebody is: issuers of JWTs, and an OpenID provider."""

from __future__ import annotations

import msgspec

from sluice.gateway.config.checks import check_url

ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signature algorithms an issuer may use: none with a shared secret, and not ``none``."""


class IssuerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trusted issuer of JWTs. The principal is name_claim with prefix before it. An issuer without a prefix can
    name any principal: several of them, or one beside a user file and client certificates, must agree on names.
    """

    issuer: str
    audience: str
    jwks_url: str = ""
    """Empty: the ``jwks_uri`` of the issuer's discovery document."""
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    name_claim: str = "sub"
    groups_claim: str = "groups"
    prefix: str = ""
    ca_file: str = ""
    """File with the authority of its HTTPS certificate; empty: the system's authorities."""
    max_lifetime: float = 86400.0
    """Longest lifetime of a token; others are refused."""

    def __post_init__(self) -> None:
        check_url("issuer", self.issuer)
        if self.jwks_url:
            check_url("jwks_url", self.jwks_url)
        if not self.audience:
            raise ValueError("audience must not be empty")
        if unknown := set(self.algorithms) - set(ASYMMETRIC):
            raise ValueError(f"algorithms {sorted(unknown)} cannot be allowed; these can: {', '.join(ASYMMETRIC)}")


class OidcConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The OpenID provider that people sign in with. Claims are read as those of :class:`IssuerConfig`."""

    issuer: str
    client_id: str
    client_secret_file: str = ""
    """File (mode 0600) with the client's secret; empty: a public client, which only PKCE protects."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    name_claim: str = "sub"
    groups_claim: str = "groups"
    prefix: str = ""
    ca_file: str = ""

    def __post_init__(self) -> None:
        if not self.client_id:
            raise ValueError("client_id must not be empty")
        if "openid" not in self.scopes:
            raise ValueError("scopes must have 'openid'")
        self.as_issuer()

    def as_issuer(self) -> IssuerConfig:
        """How the provider's ID tokens are verified: their audience is the client (OpenID Connect Core 3.1.3.7)."""
        return IssuerConfig(
            issuer=self.issuer,
            audience=self.client_id,
            algorithms=self.algorithms,
            name_claim=self.name_claim,
            groups_claim=self.groups_claim,
            prefix=self.prefix,
            ca_file=self.ca_file,
        )
