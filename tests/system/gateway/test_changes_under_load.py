"""Under load, certificates, policy, token keys and revocations change and the xDS server restarts.

No request fails.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from sluice.core.files import write_secret
from sluice.gateway.credentials.revocations import Revocations
from sluice.gateway.credentials.signing_keys import AccessTokenKeys
from sluice.pki.assertions.principal import Jti, TokenId
from tests.integration.gateway.authorization.test_access_tokens_at_envoy import access_token_of
from tests.integration.gateway.conftest import Gateway

REQUESTS = 10_000
"""At least as many must be answered while everything changes."""
CLIENTS = 4
REQUESTS_PER_CONNECTION = 40
DEADLINE_SECONDS = 150.0
POLICY = """
version = 1
default_roles = []
[roles.viewer]
description = "variant {number}"
allow = ["jobs.list", "jobs.{more}"]
[roles.admin]
description = "all"
allow = ["*"]
"""


class Load:
    """Clients that send requests without a pause and renew their connections; records failures."""

    def __init__(self, gateway: Gateway, credential: str) -> None:
        self._gateway = gateway
        self._request = (
            f"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {credential}\r\n\r\n".encode()
        )
        self._context: ssl.SSLContext = gateway.tls()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        self._counts = [0] * CLIENTS
        self.failures: list[str] = []

    @property
    def answered(self) -> int:
        return sum(self._counts)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        mine = self._threads.index(threading.current_thread())
        while not self._stop.is_set():
            try:
                with self._gateway.connect(self._context) as connection:
                    for _ in range(REQUESTS_PER_CONNECTION):
                        connection.sendall(self._request)
                        reply = self._gateway.read(connection)
                        if reply.status != 200:
                            self.failures.append(f"{reply.status} {reply.body[:200]!r}")
                        self._counts[mine] += 1
                        if reply.headers["connection"] == "close":
                            break
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))


def under_load(
    gateway: Gateway, credential: str, changes: Sequence[Callable[[int], object]], *, restarts: bool = False
) -> None:
    """Make ``changes`` in turn until enough requests with ``credential`` were answered.

    All of them must be answered with 200.
    """
    number, deadline = 0, time.monotonic() + DEADLINE_SECONDS
    with Load(gateway, credential) as load:
        while load.answered < REQUESTS and not load.failures:
            assert time.monotonic() < deadline, f"{load.answered} answered"
            changes[number % len(changes)](number)
            number += 1
            if restarts and number % 40 == 20:
                # Its xDS server away and back again: Envoy goes on with what it has.
                gateway.stop_auth()
                gateway.start_auth()
            time.sleep(0.05)  # a pace, not a wait for something
    assert load.failures == []
    assert load.answered >= REQUESTS
    assert number >= len(changes) * 3


def test_no_request_fails_while_certificates_keys_and_revocations_change_and_xds_restarts(
    running_gateway: Gateway,
) -> None:
    gateway = running_gateway
    text, _ = access_token_of(gateway, "viewer")
    keys, revocations = AccessTokenKeys.of(gateway.home), Revocations.of(gateway.home)
    changes: list[Callable[[int], object]] = [
        lambda _: gateway.authority.issue(gateway.identity),
        lambda number: revocations.revoke(("token", TokenId(f"somebody-{number}"))),
        lambda number: keys.refresh(time.time() + number),
    ]
    under_load(gateway, text, changes, restarts=True)


def test_envoy_follows_the_xds_server_after_the_server_was_away(running_gateway: Gateway) -> None:
    """A revocation made meanwhile takes effect within five seconds of the server's return."""
    gateway = running_gateway
    text, made = access_token_of(gateway, "viewer", "away", "away-1")
    gateway.stop_auth()
    assert gateway.send("GET", "/v1/jobs", token=text).status == 200
    Revocations.of(gateway.home).revoke(("pass", Jti(made.access_token_id or "")))
    gateway.start_auth()
    back = time.monotonic()
    while gateway.send("GET", "/v1/jobs", token=text).status == 200:
        assert time.monotonic() - back < 5.0, "Envoy does not come back to the server"


def test_no_request_fails_while_the_policy_changes(running_gateway: Gateway) -> None:
    """Envoy asks about access tokens made under another policy, so here the auth service stays up."""
    gateway = running_gateway
    text, _ = access_token_of(gateway, "viewer", "policy", "policy-1")
    policy_path = gateway.home.gateway / "policy.toml"

    def change(number: int) -> None:
        write_secret(policy_path, POLICY.format(number=number, more=("read", "cancel")[number // 4 % 2]).encode())

    try:
        under_load(gateway, text, [change])
    finally:
        policy_path.unlink(missing_ok=True)
