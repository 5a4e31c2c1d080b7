"""Settings of the identity providers that the gateway trusts: issuers of JWTs, and an OpenID provider."""

from __future__ import annotations

import msgspec

from sluice.gateway.config.checks import check_url

ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signature algorithms that an issuer may use: neither algorithms with a shared secret nor ``none``."""


class IssuerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trusted issuer of JWTs. The principal is name_claim, preceded by prefix. An issuer without a prefix can name
    any principal. So several such issuers, or one beside a user file or client certificates, must agree on names.
    """

    issuer: str
    audience: str
    jwks_url: str = ""
    """URL of the key set; empty: ``jwks_uri`` from the issuer's discovery document."""
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    name_claim: str = "sub"
    groups_claim: str = "groups"
    prefix: str = ""
    ca_file: str = ""
    """File with the CA for its HTTPS certificate; empty: the system's CAs."""
    max_lifetime: float = 86400.0
    """Maximum lifetime of a token. Tokens with a longer one are refused."""

    def __post_init__(self) -> None:
        check_url("issuer", self.issuer)
        if self.jwks_url:
            check_url("jwks_url", self.jwks_url)
        if not self.audience:
            raise ValueError("audience must not be empty")
        if unknown := set(self.algorithms) - set(ASYMMETRIC):
            raise ValueError(f"algorithms {sorted(unknown)} cannot be allowed; these can: {', '.join(ASYMMETRIC)}")


class OidcConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The OpenID provider for sign-in. Claims are read like those of :class:`IssuerConfig`."""

    issuer: str
    client_id: str
    client_secret_file: str = ""
    """File (mode 0600) with the client's secret; empty: a public client, protected only by PKCE."""
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
            raise ValueError("scopes must contain 'openid'")
        self.as_issuer()

    def as_issuer(self) -> IssuerConfig:
        """Issuer settings for the provider's ID tokens. The audience is the client (OpenID Connect Core 3.1.3.7)."""
        return IssuerConfig(
            issuer=self.issuer,
            audience=self.client_id,
            algorithms=self.algorithms,
            name_claim=self.name_claim,
            groups_claim=self.groups_claim,
            prefix=self.prefix,
            ca_file=self.ca_file,
        )
