"""Leader election with ZooKeeper's recipe; writes are fenced by the latch.

Each candidate has an ephemeral sequential node, its *latch*; the candidate with the lowest number leads. A latch lives
as long as its session, and no path is used twice. So a transaction that checks that the latch exists succeeds only
while its owner leads, however late it arrives. A leader also measures the time itself: it counts from the moment its
last answered request was *sent*, and gives up before the ensemble could have ended its session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import (  # type: ignore[import-untyped]  # has no types
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
)
from kazoo.security import make_acl  # type: ignore[import-untyped]

from sluice.core import end_tasks
from sluice.pki import Role
from sluice.pki.tls import TlsIdentity
from sluice.runtime.ha.config import HaConfig
from sluice.runtime.ha.errors import ElectionUnavailable, EntryDamaged, LeadershipLost
from sluice.runtime.ha.leadership import LeaderInformation, Leadership
from sluice.runtime.ha.leadership_validity import SAFE_SHARE, LeadershipValidity
from sluice.runtime.ha.pointers import FOLDERS
from sluice.runtime.ha.zookeeper.pointers import ZooKeeperPointers
from sluice.runtime.ha.zookeeper.session import LOST, ZooKeeperSession

_LOG = logging.getLogger(__name__)

CONFIRMATIONS_PER_SESSION = 6
RETRY_SECONDS = 0.5
ASK_SECONDS = 3.0
"""Timeout for a request for the leader or the standbys."""
MAX_STANDBYS = 32
MAX_NAME_BYTES = 100
_LATCHES, _LEADER = "latches", "leader"
_SEQUENCE_DIGITS = 10
_SILENCE = f"ZooKeeper has not answered within {SAFE_SHARE:.0%} of the session timeout"


def access_list(names: Sequence[str], role: Role = Role.JOBMANAGER) -> list[Any]:
    """The access control list that grants everything to these processes in ``role``, and nothing to anybody else.

    ZooKeeper identifies a client by the subject of its certificate (scheme ``x509``), which is ``CN=<role>/<name>``;
    see :meth:`sluice.pki.x509.profiles.Names.subject`.
    """
    return [make_acl("x509", f"CN={role.value}/{name}", all=True) for name in names]


class ZooKeeperElection:
    """A :class:`~sluice.runtime.ha.leadership.LeaderElection` in ZooKeeper, among the JobManagers of ``config``."""

    across_machines = True

    def __init__(self, config: HaConfig, identity: TlsIdentity) -> None:
        self._config = config
        self._identity = identity
        self._root = f"{config.zookeeper_root}/{config.cluster}"
        self._acl = access_list(config.jobmanagers, identity.spiffe_id.role)
        self._session: ZooKeeperSession | None = None
        self._moved = asyncio.Event()
        self._over = False

    async def elect(self, standing_by: Callable[[], None]) -> Leadership:
        """Wait until this process leads. ``standing_by`` is called as soon as another process is known to lead."""
        said = ""
        while True:
            try:
                return await self._try(standing_by)
            except (KazooException, ElectionUnavailable) as error:
                if isinstance(error, ElectionUnavailable | NoAuthError):
                    text = str(error)
                    if text != said:
                        said = text
                        _LOG.error("cannot take part in the election: %s", text or type(error).__name__)
                else:
                    _LOG.info("the election starts again: %s", type(error).__name__)
                await self.close()
                standing_by()
            await asyncio.sleep(RETRY_SECONDS)

    async def leader(self) -> LeaderInformation | None:
        """The current leader, or None when it is unknown."""
        session = self._session
        if session is None or not session.connected:
            return None
        try:
            value, _ = await asyncio.wait_for(session.get(f"{self._root}/{_LEADER}"), ASK_SECONDS)
            return LeaderInformation.decode(value)
        except (KazooException, EntryDamaged, TimeoutError):
            return None

    async def standbys(self) -> tuple[str, ...] | None:
        """Names of the candidates whose latches come after the first. The names are not authenticated."""
        session = self._session
        if session is None or not session.connected:
            return None
        try:
            async with asyncio.timeout(ASK_SECONDS):
                queue = sorted(await session.children(f"{self._root}/{_LATCHES}"), key=sequence_of)
                found = [await self._name_of(session, each) for each in queue[1 : 1 + MAX_STANDBYS]]
        except (KazooException, TimeoutError):
            return None
        return tuple(sorted({name for name in found if name}))

    async def _name_of(self, session: ZooKeeperSession, latch: str) -> str:
        try:
            value, _ = await session.get(f"{self._root}/{_LATCHES}/{latch}")
        except NoNodeError:
            return ""
        return value[:MAX_NAME_BYTES].decode("utf-8", "replace")

    async def close(self) -> None:
        """Leave the election."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _try(self, standing_by: Callable[[], None]) -> Leadership:
        """Run one session: connect, queue up, and wait until our latch is the first."""
        await self.close()
        self._over = False
        self._moved.clear()
        config = self._config
        session = ZooKeeperSession(config.zookeeper_hosts, self._identity, config.session_timeout, self._changed)
        self._session = session
        session.start()
        while not session.connected:
            self._check_session()  # kazoo's thread has ended, as after a failed authentication
            self._moved.clear()
            if not (session.connected or self._over):
                await self._moved.wait()
        await self._prepare(session)
        latch = await self._queue_up(session)
        while not await self._first(session, latch):
            standing_by()
            await self._moved.wait()
            self._check_session()
        await self._secure_pointers(session)
        # After the pointers, which may be many: the leadership is certain only for a while from here on.
        asked_at = time.monotonic()
        if not await session.exists(latch):
            raise NoNodeError
        return ZooKeeperLeadership(session, root=self._root, latch=latch, acl=self._acl, confirmed_at=asked_at)

    def _changed(self, state: str) -> None:
        self._over = self._over or state == LOST
        self._moved.set()

    def _check_session(self) -> None:
        if self._over:
            raise ElectionUnavailable("the session with ZooKeeper is over")

    async def _queue_up(self, session: ZooKeeperSession) -> str:
        """Create our latch. If the answer is lost, find the latch again by the random part of its name."""
        parent, prefix = f"{self._root}/{_LATCHES}", f"{secrets.token_hex(8)}-"
        name = self._identity.spiffe_id.name.encode()
        while True:
            try:
                return await session.create(f"{parent}/{prefix}", name, self._acl, ephemeral=True, sequence=True)
            except NoAuthError:
                raise
            except KazooException:
                self._check_session()
                await asyncio.sleep(RETRY_SECONDS)
                found = [child for child in await session.children(parent) if child.startswith(prefix)]
                if found:
                    return f"{parent}/{found[0]}"

    async def _first(self, session: ZooKeeperSession, latch: str) -> bool:
        """Return whether our latch is the lowest; if not, watch the one before it."""
        parent, _, own = latch.rpartition("/")
        self._moved.clear()
        queue = sorted(await session.children(parent), key=sequence_of)
        if own not in queue:
            raise NoNodeError
        place = queue.index(own)
        if place == 0:
            return True
        if not await session.exists(f"{parent}/{queue[place - 1]}", self._moved.set):
            self._moved.set()
        return False

    # --- nodes that only the JobManagers may access ---------------------------------------------------------

    async def _prepare(self, session: ZooKeeperSession) -> None:
        """Create all parent nodes; refuse to work below a node that others may write."""
        path = ""
        for segment in self._root.strip("/").split("/"):
            path += f"/{segment}"
            await self._ensure(session, path)
        for folder in (_LATCHES, *FOLDERS):
            await self._ensure(session, f"{self._root}/{folder}")

    async def _ensure(self, session: ZooKeeperSession, path: str) -> None:
        with contextlib.suppress(NodeExistsError):
            await session.create(path, b"", self._acl)
        await self._secure(session, path)

    async def _secure(self, session: ZooKeeperSession, path: str) -> None:
        try:
            if set(await session.access(path)) == set(self._acl):
                return
            await session.set_access(path, self._acl)
        except NoAuthError as error:
            raise ElectionUnavailable(
                f"ZooKeeper denies {self._identity.spiffe_id} access to {path}",
                "add its name to ha.jobmanagers, and restart a JobManager that is listed",
            ) from error
        _LOG.info("set the access control list of %s in ZooKeeper", path)

    async def _secure_pointers(self, session: ZooKeeperSession) -> None:
        """Update the access control lists of all pointers: ``ha.jobmanagers`` may have changed since they were set."""
        for folder in FOLDERS:
            for name in await session.children(f"{self._root}/{folder}"):
                with contextlib.suppress(NoNodeError):
                    await self._secure(session, f"{self._root}/{folder}/{name}")


def sequence_of(latch: str) -> int:
    """The sequence number that ZooKeeper assigned to a latch; nodes that are not latches sort last."""
    digits = latch[-_SEQUENCE_DIGITS:]
    return int(digits) if digits.isdigit() else 1 << 40


class ZooKeeperLeadership:
    """One term of leadership; see :class:`~sluice.runtime.ha.leadership.Leadership`.

    Args:
        session: the session with ZooKeeper; closed when the term ends.
        root: path of the cluster's node.
        latch: path of our latch.
        acl: access control list for new nodes.
        confirmed_at: when the request was sent whose answer proved the leadership.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        *,
        root: str,
        latch: str,
        acl: Sequence[Any],
        confirmed_at: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.granted_at = clock()
        self.epoch = sequence_of(latch) + 1
        self.pointers = ZooKeeperPointers(session, root, latch, acl, self.check)
        self._session = session
        self._leader = f"{root}/{_LEADER}"
        self._latch = latch
        self._validity = LeadershipValidity(lambda: session.timeout, confirmed_at, clock)
        self._clock = clock
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._confirming = asyncio.create_task(self._confirm(), name="leadership")

    def check(self) -> None:
        """Return if this process certainly leads; raise ``LeadershipLost`` if it does not or cannot know."""
        if self._lost.done():
            raise LeadershipLost(f"this process does not lead any more: {self._lost.result()}")
        if self._validity.remaining <= 0:
            self._lose(_SILENCE)
            self.check()

    async def lost(self) -> str:
        """Wait until the leadership is lost; return the reason."""
        return await asyncio.shield(self._lost)

    async def publish(self, information: LeaderInformation) -> None:
        """Publish the leader's address."""
        await self.pointers.publish(self._leader, information.encode())

    async def resign(self) -> None:
        """Close the session: the latch is deleted, and requests still in flight are never carried out."""
        self._lose("it has resigned")
        await end_tasks(self._confirming)
        await self._session.close()

    def _lose(self, why: str) -> None:
        if not self._lost.done():
            self._lost.set_result(why)

    async def _confirm(self) -> None:
        """Check our latch regularly; stop leading when it is gone or when no answer arrives in time."""
        while not self._lost.done():
            asked_at = self._clock()
            try:
                async with asyncio.timeout(max(0.01, self._validity.remaining)):
                    there = await self._session.exists(self._latch)
            except KazooException:
                pass  # no answer: the last confirmation still counts
            except TimeoutError:
                self._lose(_SILENCE)
                return
            except Exception:  # noqa: BLE001  # whatever the error, this process leads only as long as it gets answers
                _LOG.exception("the leadership cannot be confirmed now")
            else:
                if not there:
                    self._lose("the session with ZooKeeper was ended")
                    return
                self._validity.confirm(asked_at)
            left = self._validity.remaining
            if left <= 0:
                self._lose(_SILENCE)
                return
            await asyncio.sleep(min(left, self._session.timeout / CONFIRMATIONS_PER_SESSION))
