"""The ``ca`` process: only it and other ``ca`` processes of the same home hold the internal authority's key."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from sluice.core import Home, PkiError, repeat
from sluice.pki.ca.acme_service import HomeAuthority, serving_acme
from sluice.pki.ca.address import DEFAULT_NAME, CaAddress, only_one_named, publish_ca, withdraw_ca
from sluice.pki.ca.attesting import attesting, publishing_trust
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.revoker import Revoker
from sluice.pki.ca.server import CaServer
from sluice.pki.ca.subscriber_file import SubscriberFile
from sluice.pki.config import PkiConfig
from sluice.pki.identities import renewal_reason
from sluice.pki.revocation import push_crls
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls import ConnectionLog, TlsIdentity
from sluice.pki.trust import reporting
from sluice.pki.x509 import AuthorityKind

_LOG = logging.getLogger(__name__)

RENEWAL_CHECK_SECONDS = 2.0
"""How often the CA checks whether its own identity is due, also after a change of the signing authority."""
LISTS_CHECK_SECONDS = 60.0
FOLLOWERS_CHECK_SECONDS = 1.0
"""How soon the verbs of a rotation see reports from other machines."""
NOTES_CHECK_SECONDS = 5.0
"""How soon the ledger includes what was signed on this machine without the CA."""


async def run_ca(home: Home, pki: PkiConfig, config: CaConfig, name: str) -> None:
    """Run the online authority until cancelled; see :func:`online_ca`."""
    async with online_ca(home, pki, config, name):
        await asyncio.Event().wait()


@asynccontextmanager
async def online_ca(home: Home, pki: PkiConfig, config: CaConfig, name: str = DEFAULT_NAME) -> AsyncIterator[CaAddress]:
    """A running authority; yields its addresses once it takes requests.

    It issues its own identity, ``spiffe://<td>/ca/<name>``, and renews it at half of its life. Several may run in one
    home, each with its own name.

    Raises:
        StoreError: there is no internal authority with its key in ``home``, an address is taken, or another process
            has this name.
        LedgerError: the ledger is damaged, or another process keeps the turn at it.
    """
    home.create()
    async with AsyncExitStack() as stack:
        stack.enter_context(only_one_named(home, name))
        authority = OnlineAuthority(home.pki, pki, overlap=dt.timedelta(minutes=config.renewal_overlap_minutes))
        stack.callback(authority.close)
        directory = home.identity(Role.CA, name)
        spiffe_id = SpiffeId.process(pki.trust_domain, Role.CA, name)

        def renew_own() -> None:
            if reason := renewal_reason(directory, spiffe_id, dt.datetime.now(dt.UTC)):
                authority.issue_own(directory, name, config.host)
                _LOG.info("issued %s: %s", spiffe_id, reason)

        def refresh_lists() -> None:
            # Other machines get them from here; processes of this home get them as files.
            push_crls(home, authority.refresh_lists(), dt.datetime.now(dt.UTC))

        authority.take_notes()
        renew_own()
        refresh_lists()
        identity = TlsIdentity(directory)
        await stack.enter_async_context(reporting(identity, "ca"))
        following = SubscriberFile(home.pki, name)
        following.keep(at_once=True)
        stack.callback(_keep_at_the_end, following)
        attestors = await stack.enter_async_context(attesting(config.kubernetes, pki.trust_domain))
        server = CaServer(
            identity,
            authority,
            connections=ConnectionLog(),
            subscribers=following.subscribers,
            revoker=Revoker(home, pki),
            attestors=attestors,
        )
        stack.push_async_callback(server.close)
        read_trust = functools.partial(server.call, functools.partial(authority.trust, AuthorityKind.INTERNAL))
        await stack.enter_async_context(publishing_trust(config.kubernetes, read_trust))
        mutual, enrolment = await server.start(config.host, config.port, config.enrolment_port)
        signing = HomeAuthority(home, pki, authority, server.call)
        acme = await stack.enter_async_context(serving_acme(home, pki, config.acme, identity, signing))
        renewing = asyncio.create_task(_repeat_forever(server, renew_own, RENEWAL_CHECK_SECONDS))
        stack.callback(renewing.cancel)
        noting = asyncio.create_task(_repeat_forever(server, authority.take_notes, NOTES_CHECK_SECONDS))
        stack.callback(noting.cancel)
        keeping = asyncio.create_task(_repeat_forever(server, following.keep, FOLLOWERS_CHECK_SECONDS))
        stack.callback(keeping.cancel)
        refreshing = asyncio.create_task(_repeat_forever(server, refresh_lists, LISTS_CHECK_SECONDS))
        stack.callback(refreshing.cancel)
        address = CaAddress(name=name, mutual=mutual, enrolment=enrolment, pid=os.getpid(), acme=acme)
        stack.callback(withdraw_ca, home, address)
        publish_ca(home, address)
        _LOG.info("CA %s is ready: %s:%d, enrolment %s:%d", spiffe_id, *mutual, *enrolment)
        yield address
        _LOG.info("CA %s stops; state of the ledger: %s", spiffe_id, authority.state)


def _keep_at_the_end(following: SubscriberFile) -> None:
    try:
        following.keep(at_once=True)
    except (PkiError, OSError) as error:
        _LOG.error("the file of trust subscribers is not updated: %s", error)


async def _repeat_forever(server: CaServer, duty: Callable[[], object], seconds: float) -> None:
    failure = "the CA's identity, its revocation lists, its ledger or its subscribers stay as they are; trying again"
    await repeat(functools.partial(server.call, duty), seconds, failure)
