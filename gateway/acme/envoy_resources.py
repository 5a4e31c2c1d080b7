"""xDS resources for Envoy that answer the current challenges: certificates for tls-alpn-01, routes for http-01."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from sluice.core import Home
from sluice.core.xds import ROUTES, SECRET, Message, certificate_secret, from_json
from sluice.gateway.acme.challenges import Challenge, ChallengeFile, challenge_certificate
from sluice.gateway.acme.store import AcmeStore
from sluice.gateway.config import GatewayConfig
from sluice.gateway.envoy_config import http_challenge_routes
from sluice.gateway.upstreams import ACME_ROUTES, ACME_SECRET, acme_secret


class ChallengeResources:
    """Follows the challenge file. Each name always has a secret, so Envoy never waits for one."""

    def __init__(self, config: GatewayConfig, file: ChallengeFile) -> None:
        self._names = tuple(sorted({name.lower() for name in config.server_names}))
        self._over_tls = config.acme is not None and config.acme.challenge == "tls-alpn-01"
        self._file = file
        self._idle: tuple[bytes, bytes] | None = None

    @classmethod
    def of(cls, home: Home, config: GatewayConfig) -> ChallengeResources | None:
        """The resources for a gateway with an ACME server; None if it has none."""
        return None if config.acme is None else cls(config, AcmeStore(home).challenges)

    def update(self, now: dt.datetime) -> Mapping[str, Mapping[str, Message]] | None:
        """Resources by kind and name if they changed since the last call, else None."""
        challenges = self._file.update(now)
        if challenges is None:
            return None
        mine = tuple(each for each in challenges if each.name in self._names)
        return {SECRET: self._secrets(mine, now)} if self._over_tls else {ROUTES: _routes(mine)}

    def _secrets(self, challenges: tuple[Challenge, ...], now: dt.datetime) -> dict[str, Message]:
        if self._idle is None:
            self._idle = challenge_certificate(None, now)
        pairs = {acme_secret(name): self._idle for name in self._names} | {ACME_SECRET: self._idle}
        pairs |= {
            acme_secret(each.name): challenge_certificate(each, now)
            for each in challenges
            if each.kind == "tls-alpn-01"
        }
        return {name: certificate_secret(name, chain, key) for name, (chain, key) in pairs.items()}


def _routes(challenges: tuple[Challenge, ...]) -> dict[str, Message]:
    answers: dict[str, dict[str, str]] = {}
    for each in challenges:
        if each.kind == "http-01":
            answers.setdefault(each.name, {})[each.path] = each.key_authorization
    return {ACME_ROUTES: from_json(ROUTES, http_challenge_routes(answers))}
