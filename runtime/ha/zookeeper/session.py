"""A ZooKeeper session for asyncio: kazoo's client over mutual TLS.

kazoo works in its own threads; here every request is a coroutine. The server must present a certificate with role
``zookeeper`` in the handshake (``pki.tls.contexts``); its host name does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kazoo.client import KazooClient, TransactionRequest  # type: ignore[import-untyped]  # has no types
from kazoo.handlers.threading import SequentialThreadingHandler  # type: ignore[import-untyped]
from kazoo.protocol.states import KazooState  # type: ignore[import-untyped]
from kazoo.retry import KazooRetry  # type: ignore[import-untyped]

from sluice.core import SluiceError
from sluice.pki import Channel, Role, server_policy
from sluice.pki.tls import TlsIdentity
from sluice.runtime.ha.errors import ElectionUnavailable

_LOG = logging.getLogger(__name__)

LONGEST_RETRY_SECONDS = 1.0
STOP_SECONDS = 5.0
READ_SHARE = 2 / 3
"""kazoo waits this share of the negotiated session timeout for the server (ConnectionHandler._connect)."""


class _TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threading handler, with mutual TLS connections."""

    def __init__(self, identity: TlsIdentity) -> None:
        super().__init__()
        self._identity = identity

    def create_connection(
        self, address: tuple[str, int], timeout: float | None = None, hostname: str | None = None, **_: object
    ) -> socket.socket:
        """Connect and do the TLS handshake, presenting the newest certificate of this process."""
        policy = server_policy(Channel.ZOOKEEPER, self._identity.spiffe_id.trust_domain, role=Role.ZOOKEEPER)
        context = self._identity.client_context(policy)
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain, server_hostname=hostname)
        except SluiceError as error:
            plain.close()
            _LOG.warning("refusing ZooKeeper at %s:%d: %s", *address[:2], error)
            raise ConnectionRefusedError(str(error)) from error
        except BaseException:
            plain.close()
            raise


class ZooKeeperSession:
    """A session. It ends with :meth:`close`, or when the ensemble has not heard from it for the session timeout.

    Args:
        hosts: ``host:port`` of each server.
        identity: the TLS identity of this process.
        timeout: requested session timeout in seconds; :attr:`timeout` is the granted one.
        changed: called in the event loop with kazoo's state when the connection is made or lost, or the session is
            over (``LOST``).
    """

    def __init__(
        self, hosts: Sequence[str], identity: TlsIdentity, timeout: float, changed: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._negotiated = 0.0
        retry = KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=LONGEST_RETRY_SECONDS)
        self._client = KazooClient(
            hosts=",".join(hosts),
            timeout=timeout,
            handler=_TlsHandler(identity),
            connection_retry=retry,
            logger=_LOG.getChild("kazoo"),
            randomize_hosts=True,
        )
        self._remember_timeout()
        self._client.add_listener(self._listen)

    @property
    def timeout(self) -> float:
        """The granted session timeout in seconds; 0 before the first connection."""
        return self._negotiated

    @property
    def connected(self) -> bool:
        """Whether the session is connected now."""
        return bool(self._client.connected)

    def start(self) -> None:
        """Start connecting."""
        self._client.start_async()

    async def close(self) -> None:
        """End the session: its ephemeral nodes are deleted, and none of its requests is carried out any more."""

        def stop() -> None:
            with contextlib.suppress(Exception):  # whatever the error, the session then ends by its timeout
                self._client.stop()
                self._client.close()

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(stop), STOP_SECONDS)

    def transaction(self) -> TransactionRequest:
        """Return an empty transaction for :meth:`commit`."""
        return self._client.transaction()

    async def commit(self, transaction: TransactionRequest) -> list[Any]:
        """Results in order, with exceptions for failed steps; raises ``KazooException`` if the outcome is unknown."""
        return list(await self._wait(transaction.commit_async()))

    async def get(self, path: str) -> tuple[bytes, int]:
        """Return value and version of a node; raises ``NoNodeError``."""
        value, status = await self._wait(self._client.get_async(path))
        return value, status.version

    async def children(self, path: str) -> list[str]:
        """The names of a node's children."""
        return list(await self._wait(self._client.get_children_async(path)))

    async def exists(self, path: str, watch: Callable[[], None] | None = None) -> bool:
        """Return whether a node exists; ``watch`` is called in the event loop when that may have changed."""
        watcher = None if watch is None else lambda _: self._tell(watch)
        return await self._wait(self._client.exists_async(path, watcher)) is not None

    async def create(self, path: str, value: bytes, acl: Sequence[Any], **flags: bool) -> str:
        """Create a node (flags ``ephemeral``, ``sequence``) and return its path; raises ``NodeExistsError``."""
        return str(await self._wait(self._client.create_async(path, value, acl=list(acl), **flags)))

    async def access(self, path: str) -> list[Any]:
        """The access control list of a node."""
        entries, _ = await self._wait(self._client.get_acls_async(path))
        return list(entries)

    async def set_access(self, path: str, acl: Sequence[Any]) -> None:
        """Replace the access control list of a node; raises ``NoAuthError``."""
        await self._wait(self._client.set_acls_async(path, list(acl)))

    async def delete(self, path: str) -> None:
        """Remove a node; raises ``NoNodeError``."""
        await self._wait(self._client.delete_async(path))

    def _wait(self, asked: Any) -> Awaitable[Any]:  # noqa: ANN401  # kazoo has no types
        """The outcome of a request, as a future of the event loop."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle(done: Any) -> None:  # noqa: ANN401
            if future.done():
                return
            if done.successful():
                future.set_result(done.value)
            else:
                future.set_exception(done.exception)

        asked.rawlink(lambda done: self._tell(lambda: settle(done)))
        return future

    def _tell(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits for the result
            self._loop.call_soon_threadsafe(function)

    def _listen(self, state: str) -> None:
        """Called by one of kazoo's threads."""
        self._tell(lambda: self._changed(state))

    def _remember_timeout(self) -> None:
        """Record the granted session timeout, which kazoo itself does not keep, where kazoo computes with it."""
        handler = getattr(self._client, "_connection", None)
        connect = getattr(handler, "_connect", None)
        if handler is None or connect is None:
            raise ElectionUnavailable("this version of kazoo does not expose session timeouts", "install kazoo 2.11")

        def remembered(*arguments: Any) -> Any:  # noqa: ANN401
            read_timeout, connect_timeout = connect(*arguments)
            self._negotiated = read_timeout / 1000.0 / READ_SHARE
            return read_timeout, connect_timeout

        handler._connect = remembered  # noqa: SLF001  # see the docstring


LOST = str(KazooState.LOST)
