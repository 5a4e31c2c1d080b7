"""Runs the ACME server within the online authority: signing, renewal of its certificate, and its listener."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509

from sluice.core import Home, PkiError, StoreError, end_tasks, repeat, url_host, utc_now
from sluice.pki.acme import (
    DIRECTORY_PATH,
    AcmeConfig,
    AcmeListener,
    AcmeServer,
    AcmeStore,
    Certificate,
    DnsResolver,
    NamePolicy,
    Pattern,
    Reach,
    ServerCertificate,
    acme_path,
    challenge_check,
    parse_patterns,
)
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.config import PkiConfig
from sluice.pki.identities import CHAIN_FILE, read_certificates
from sluice.pki.issuing import HostRequest, IssuedHost
from sluice.pki.revocation import Reason, RevocationStore, RevocationTarget, push_crls
from sluice.pki.spiffe_id import Role
from sluice.pki.tls import TlsIdentity
from sluice.pki.x509 import AuthorityKind, alternative_names, host_profile

_LOG = logging.getLogger(__name__)

SERVER_LIFETIME = dt.timedelta(days=7)
"""Lifetime of the listener's certificate, which is renewed at half of it."""
RENEWAL_CHECK_SECONDS = 60.0

Call = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function in the authority's thread."""


class HomeAuthority:
    """Signs and revokes with the edge authority of a home."""

    def __init__(self, home: Home, pki: PkiConfig, authority: OnlineAuthority, call: Call) -> None:
        self._home = home
        self._authority = authority
        self._call = call
        self._revocations = RevocationStore(home.pki, pki, clock=utc_now)

    async def issue(self, request: HostRequest) -> IssuedHost:
        """Sign and record."""
        issued: IssuedHost = await self._call(lambda: self._authority.issue_host(request))
        return issued

    async def revoke(self, certificate: Certificate, reason: Reason, by: str) -> bool:
        """Add it to the CRL of the edge authority, and install the CRL in every identity directory of the home."""
        leaf = x509.load_pem_x509_certificates(certificate.chain_pem.encode())[0]
        names = ",".join(str(each) for each in certificate.identifiers)

        def revoke() -> bool:
            with self._authority.turn():
                added = self._revocations.revoke(AuthorityKind.EDGE, [RevocationTarget.of(leaf, names)], reason)
                push_crls(self._home, self._revocations.lists(), utc_now())
            return bool(added)

        added: bool = await self._call(revoke)
        if added:
            _LOG.warning("revoked %s, serial %s, %s: asked by %s, by ACME", names, certificate.serial, reason, by)
        return added


def name_policy(home: Home, config: AcmeConfig, host: str) -> Callable[[], NamePolicy]:
    """The current policy for names; ``host`` is the server's own name."""
    allowed, excepted = parse_patterns(config.names), parse_patterns((*config.except_names, host))

    def policy() -> NamePolicy:
        return NamePolicy(allowed, (*excepted, *_names_of_gateways(home)))

    return policy


def _names_of_gateways(home: Home) -> tuple[Pattern, ...]:
    """The host names of this home's gateways: a certificate for one of them could impersonate the gateway."""
    found: list[Pattern] = []
    for chain in sorted((home.pki / "identities" / Role.GATEWAY).glob(f"*/{CHAIN_FILE}")):
        with contextlib.suppress(PkiError, x509.ExtensionNotFound):  # gone or damaged: doctor reports it
            dns, addresses = alternative_names(read_certificates(chain)[0])
            found += parse_patterns((*dns, *addresses))
    return tuple(found)


@contextlib.asynccontextmanager
async def serving_acme(
    home: Home, pki: PkiConfig, config: AcmeConfig | None, identity: TlsIdentity, authority: HomeAuthority
) -> AsyncIterator[tuple[str, int] | None]:
    """The ACME server, if it is configured; yields where it listens.

    Raises:
        StoreError: its address is taken, its store is damaged, or the edge authority's key is not here.
        CertificateRejected: the edge authority may not certify the server's own name.
    """
    if config is None:
        yield None
        return
    host = urlsplit(config.url).hostname or config.host
    if host in {"0.0.0.0", "::"}:  # noqa: S104  compared, not bound
        raise StoreError(f"the ACME server listens on {host}, which is no name for clients", "set url in [ca.acme]")
    async with contextlib.AsyncExitStack() as stack:
        certificate = ServerCertificate(host, host_profile(SERVER_LIFETIME, pki), clock=utc_now)
        await _renew(certificate, authority)
        store = AcmeStore(acme_path(home.pki))
        stack.callback(store.close)
        servers: list[AcmeServer] = []
        listener = AcmeListener(identity, certificate, lambda: servers[0].http())  # noqa: PLW0108  not made yet
        # The base URL may depend on the port. The server is made before anything is accepted: without another await.
        bound = await listener.start(config.host, config.port)
        stack.push_async_callback(listener.close)
        base = config.url or f"https://{url_host(config.host)}:{bound[1]}"
        policy = name_policy(home, config, host)
        server = AcmeServer(
            store,
            base,
            authority,
            policy=policy,
            check=challenge_check(Reach.of(config), DnsResolver(config.resolvers), policy),
            profile=host_profile(dt.timedelta(days=config.lifetime_days), pki),
            external_account_required=config.external_account_required,
        )
        servers.append(server)
        stack.push_async_callback(server.close)
        await server.start()
        failure = "the ACME server's certificate stays as it is; trying again"
        renewing = asyncio.create_task(
            repeat(functools.partial(_renew, certificate, authority), RENEWAL_CHECK_SECONDS, failure)
        )
        stack.push_async_callback(end_tasks, renewing)
        _LOG.info("ACME server: %s%s", base, DIRECTORY_PATH)
        yield bound


async def _renew(certificate: ServerCertificate, authority: HomeAuthority) -> None:
    if certificate.is_due:
        key, request = certificate.request()
        certificate.take(key, await authority.issue(request))
