"""Builds the auth service from a home and its configuration."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.core import CachedFile, EgressConfig, Home, SluiceError, end_tasks, read_secret, repeat
from sluice.gateway.audit_log import AuditLog, AuditWriter, RecordedPolicy, audit_file
from sluice.gateway.authn import Authenticator
from sluice.gateway.authz import RouteTable, known_operations
from sluice.gateway.authz.policy_file import policy_file
from sluice.gateway.config import AUTH_NAME, GatewayConfig, IssuerConfig
from sluice.gateway.connect import connect_operations
from sluice.gateway.credentials import (
    AccessTokenKeys,
    AssertionSigner,
    Revocations,
    SessionLimits,
    SessionStore,
    TokensLastUsed,
    publish_keys,
    token_snapshot,
    user_snapshot,
)
from sluice.gateway.egress import EgressChecks, JobOwners, RestJobs, resolving
from sluice.gateway.jwt import Fetcher, KeyCache
from sluice.gateway.service.auth_api import AuthApi
from sluice.gateway.service.checks import CheckService
from sluice.gateway.service.discovery import Discovery, FetchKeys
from sluice.gateway.service.ext_authz import AuthService
from sluice.gateway.shared_store import bind, leave, open_store
from sluice.gateway.signin import Directory, Provider, SignIn, key_cache
from sluice.gateway.ui import RevocationClient
from sluice.pki import Role
from sluice.pki.assertions import assertion_keys_file
from sluice.pki.ca import TokenKeysAnswer, read_cas
from sluice.pki.enrolment import Locate, OnlineTokens
from sluice.pki.tls import TlsIdentity

if TYPE_CHECKING:
    from sluice.gateway.shared_store import SharedFiles

_LOG = logging.getLogger(__name__)

MAX_ROUTE_LIST_BYTES = 1 << 20
UPKEEP_SECONDS = 10.0
"""How often the signing keys of access tokens are checked, and data in memory is written."""


def route_file(home: Home) -> Path:
    """The file to which the launcher writes the routes that REST publishes."""
    return home.run / "routes.json"


@contextlib.asynccontextmanager
async def auth_service(
    home: Home,
    config: GatewayConfig,
    trust_domain: str,
    name: str = AUTH_NAME,
    *,
    locate_ca: Locate | None = None,
) -> AsyncIterator[AuthService]:
    """The auth service of ``home``, ready to serve, with its background tasks, while the context lasts.

    ``name`` names the identity with which it calls the online authority. The authority's address is announced in
    ``home``, unless ``locate_ca`` returns it.

    Raises ``SluiceError`` when the tokens, users, routes, policy, revocations or audit log are unusable: an auth
    service that cannot decide does not start.
    """
    routes = CachedFile(
        route_file(home),
        partial(_read_routes, flight_sql=config.flight_sql),
        remedy="start the cluster with `sluice up`",
    )
    async with contextlib.AsyncExitStack() as stack:
        files = await stack.enter_async_context(_following(home, config))
        keys = AccessTokenKeys.of(home)
        await asyncio.to_thread(_refresh_keys, home, keys)
        log = stack.enter_context(contextlib.closing(AuditLog(audit_file(home))))
        audit = AuditWriter(log)
        stack.push_async_callback(audit.close)
        policy = RecordedPolicy(
            lambda: policy_file(home, config.policy_file), lambda: known_operations(routes.get().routes), log
        )
        authenticator = Authenticator(
            tokens=token_snapshot(home),
            users=user_snapshot(home),
            sessions=SessionStore(home, SessionLimits(config.session_lifetime, config.session_idle)),
            revocations=Revocations.of(home, None if files is None else files.check_fresh),
            access_token_keys=keys,
            policy=policy,
            trust_domain=trust_domain,
            issuers={each.issuer: (each, _keys_of(each)) for each in config.issuers},
            wait_until_fresh=None if files is None else files.wait_until_fresh,
        )
        authenticator.tokens.get()
        authenticator.users.get()
        authenticator.revocations.current()
        policy.get()
        use = TokensLastUsed(home)
        provider = None if config.oidc is None else Provider(config.oidc, config.origin)
        store = stack.enter_context(contextlib.closing(open_store(home)))
        sign_in = SignIn(config, authenticator, audit, trust_domain, store, provider, use)
        for _, cache in authenticator.issuers.values():
            stack.push_async_callback(cache.close)
        if provider is not None:
            stack.push_async_callback(provider.keys.close)
        stack.callback(authenticator.sessions.flush)
        stack.callback(use.flush)
        upkeep = asyncio.create_task(_look_after(home, authenticator, use))
        stack.push_async_callback(end_tasks, upkeep)
        authority = RevocationClient(
            home.identity(Role.AUTH, name), locate_ca or (lambda: read_cas(home)), authenticator.revocations
        )
        discovery = Discovery(_token_keys(authority.identity, authority.locate))
        stack.push_async_callback(end_tasks, asyncio.create_task(discovery.keep_fresh(), name="token-keys"))
        checks = CheckService(authenticator, routes, audit, sign_in, AssertionSigner(keys))
        yield AuthService(checks, AuthApi(sign_in, home, authority), discovery)


@contextlib.asynccontextmanager
async def _following(home: Home, config: GatewayConfig) -> AsyncIterator[SharedFiles | None]:
    """Keep the credential files of ``home`` in sync with other machines; yields None when they are not shared."""
    if config.shared_store is None:
        leave(home)
        yield None
        return
    files = await asyncio.to_thread(bind, home, config.shared_store)
    ended = threading.Event()
    following = asyncio.create_task(asyncio.to_thread(files.follow, ended))
    try:
        yield files
    finally:
        ended.set()
        await following
        files.close()


def _token_keys(directory: Path, locate: Locate) -> FetchKeys:
    """Fetches the keys of tokens from the online authority, with the identity of the auth service."""

    async def fetch() -> TokenKeysAnswer:
        identity = await asyncio.to_thread(TlsIdentity, directory)
        return await OnlineTokens(identity, locate).keys()

    return fetch


@contextlib.asynccontextmanager
async def egress_checks(
    service: AuthService, jobs: RestJobs, config: EgressConfig, trust_domain: str
) -> AsyncIterator[EgressChecks]:
    """The checks of outgoing connections of jobs, with the policy and the audit log of ``service``."""
    async with resolving(config.nameservers) as resolver:
        policy = service.checks.authenticator.policy
        yield EgressChecks(policy.get, JobOwners(jobs.ask), resolver, service.checks.audit, trust_domain, config.mode)


def decode_routes(data: bytes, *, flight_sql: bool = False) -> RouteTable:
    """REST's routes, and the methods of Spark Connect and optionally of Flight SQL."""
    return RouteTable([*RouteTable.decode(data).routes, *connect_operations(flight_sql=flight_sql)])


def _read_routes(path: Path, *, flight_sql: bool) -> RouteTable:
    return decode_routes(read_secret(path, MAX_ROUTE_LIST_BYTES), flight_sql=flight_sql)


def _keys_of(config: IssuerConfig) -> KeyCache:
    fetcher = Fetcher(config.ca_file)
    return key_cache(config, fetcher, Directory(config.issuer, fetcher))


async def _look_after(home: Home, authenticator: Authenticator, use: TokensLastUsed) -> None:
    for _, cache in authenticator.issuers.values():
        with contextlib.suppress(SluiceError):
            # Fetch the keys in advance, so that the first token need not wait for them.
            await cache.get()

    async def look() -> None:
        await asyncio.to_thread(_refresh_keys, home, authenticator.access_token_keys)
        await asyncio.to_thread(use.flush)
        await asyncio.to_thread(authenticator.sessions.flush_if_due)

    await repeat(look, UPKEEP_SECONDS, "cannot update the auth service's files")


def _refresh_keys(home: Home, keys: AccessTokenKeys) -> None:
    """Create and retire keys as due, and publish the key set for processes on this machine."""
    if keys.refresh(time.time()) or not assertion_keys_file(home).exists():
        publish_keys(home, keys)
        _LOG.info("rotated the signing keys of access tokens and assertions")
