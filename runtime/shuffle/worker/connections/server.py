"""Accepts the connections of the data plane, with mutual TLS and one thread each. Their number and time are limited."""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import socket
import threading
import time
from collections.abc import Iterator

from sluice.core import PeerRefused, SluiceError, printable
from sluice.pki import Channel, Role, client_policy
from sluice.pki.revocation import LOOK_SECONDS
from sluice.pki.tls import BulkStream, BulkTls, PendingPeers, StreamBroken, TlsIdentity, abort_socket
from sluice.runtime.shuffle.data_plane import (
    FrameRefused,
    FrameType,
    Header,
    Hello,
    JobNotAllowed,
    ShuffleError,
    ShuffleUnavailable,
    pack_error,
    parse_hello,
)
from sluice.runtime.shuffle.worker.connections.fetch import FetchConnection
from sluice.runtime.shuffle.worker.connections.push import PushConnection
from sluice.runtime.shuffle.worker.connections.session import Session
from sluice.runtime.shuffle.worker.storage import ShuffleStore

_LOG = logging.getLogger(__name__)

BACKLOG = 256
MAX_HANDSHAKES = 256
"""Maximum concurrent handshakes. One more ends the oldest handshake of the host that has most."""
MAX_ENDING_HANDSHAKES = 256
"""How many ended handshakes may still have a thread. Beyond this, no connection is accepted."""
WARNING_INTERVAL_SECONDS = 1.0
"""Minimum interval between log entries about too many handshakes."""
GUARD_SECONDS = 0.25
"""Interval at which deadlines are checked."""
ACCEPT_RETRY_SECONDS = 0.2
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000),
)
"""Detects a peer that disappeared without closing the connection within two minutes, with or without data in flight."""


class DataServer:
    """Listens, and runs a thread for each connection.

    Args:
        identity: the worker's identity.
        store: the worker's data.
    """

    def __init__(self, identity: TlsIdentity, store: ShuffleStore) -> None:
        self._identity = identity
        self._store = store
        self._config = store.config
        policy = client_policy(Channel.DATA, identity.spiffe_id.trust_domain)
        self._tls = BulkTls(identity, policy, serving=True, engine=store.config.engine)
        self._handshakes = threading.Semaphore(MAX_HANDSHAKES + MAX_ENDING_HANDSHAKES)
        self._pending: PendingPeers[socket.socket] = PendingPeers(MAX_HANDSHAKES)
        self._last_warning = -math.inf
        self._seen, self._looked = -1, -math.inf
        """The version of the revocations that was applied, and the time of the last check in monotonic seconds."""
        self._lock = threading.Lock()
        self._raw: dict[socket.socket, float] = {}
        self._sessions: set[Session] = set()
        self._per_peer: collections.Counter[str] = collections.Counter()
        self._threads: set[threading.Thread] = set()
        self._listening: socket.socket | None = None
        self._stopping = threading.Event()
        self.refused = 0
        """The number of connections refused so far."""

    @property
    def connections(self) -> int:
        """The number of admitted open connections."""
        return len(self._sessions)

    def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen (port 0: any free port); returns the bound address."""
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        except OSError as error:
            raise ShuffleUnavailable(
                f"cannot listen on {host}:{port}: {error.strerror or error}", "check that no process uses the port"
            ) from error
        self._listening = listening
        for name, loop in (("accept", self._accept_loop), ("guard", self._guard_loop)):
            self._thread(loop, f"shuffle-{name}")
        bound_host, bound_port = listening.getsockname()[:2]
        return bound_host, bound_port

    def stop(self) -> None:
        """Stop listening and close all connections."""
        self._stopping.set()
        if self._listening is not None:
            abort_socket(self._listening)
        with self._lock:
            for raw in self._raw:
                abort_socket(raw)
            threads = list(self._threads)
        self.end_sessions()
        for thread in threads:
            thread.join()
        if self._listening is not None:
            self._listening.close()

    def end_sessions(self, job_id: str = "") -> None:
        """Abort all open connections, or those of one job."""
        with self._lock:
            for session in self._sessions:
                if not job_id or session.is_of(job_id):
                    session.stream.abort()

    def _thread(self, target: collections.abc.Callable[..., None], name: str, *args: object) -> None:
        thread = threading.Thread(target=target, name=name, args=args, daemon=True)
        with self._lock:  # stop() finds only started threads, and a thread that ends at once is discarded after the add
            thread.start()
            self._threads.add(thread)

    def _accept_loop(self) -> None:
        listening = self._listening
        while listening is not None and not self._stopping.is_set():
            self._handshakes.acquire()
            try:
                self._accept(listening)
            except (OSError, RuntimeError) as error:  # too many open files or threads; this is temporary
                self._handshakes.release()
                if not self._stopping.is_set():
                    _LOG.error("cannot accept a connection: %s", error)
                    self._stopping.wait(ACCEPT_RETRY_SECONDS)

    def _accept(self, listening: socket.socket) -> None:
        """Wait for a connection, and start its thread, which begins with the handshake."""
        with contextlib.ExitStack() as stack:
            accepted, address = listening.accept()
            stack.callback(accepted.close)
            watched = accepted.dup()  # the handshake takes over the socket itself
            stack.callback(watched.close)
            self._add_handshake(watched, address[0])
            stack.callback(self._remove_handshake, watched)
            where = f"{address[0]}:{address[1]}"
            self._thread(self._admit, f"shuffle-{where}", accepted, watched, where)
            stack.pop_all()

    def _add_handshake(self, watched: socket.socket, host: str) -> None:
        """Record the begin of a handshake; abort another one if there are too many."""
        with self._lock:
            self._raw[watched] = time.monotonic() + self._config.handshake_seconds
            gone = self._pending.add(watched, host)
            if gone is not None:
                abort_socket(gone)
        if gone is not None and time.monotonic() - self._last_warning >= WARNING_INTERVAL_SECONDS:
            self._last_warning = time.monotonic()
            _LOG.warning("more than %d concurrent handshakes: the oldest are aborted", MAX_HANDSHAKES)

    def _remove_handshake(self, watched: socket.socket) -> None:
        with self._lock:
            self._raw.pop(watched, None)
            self._pending.discard(watched)

    def _admit(self, accepted: socket.socket, watched: socket.socket, address: str) -> None:
        """Run the thread of a connection."""
        try:
            stream = self._handshake(accepted, watched)
        except SluiceError as error:
            self._refuse(address, error)
        else:
            try:
                self._serve(stream)
            finally:
                stream.close()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _handshake(self, accepted: socket.socket, watched: socket.socket) -> BulkStream:
        try:
            for level, option, value in KEEPALIVE:
                with contextlib.suppress(OSError):
                    accepted.setsockopt(level, option, value)
            return self._tls.handshake(accepted)
        finally:
            self._remove_handshake(watched)
            watched.close()
            self._handshakes.release()

    def _serve(self, stream: BulkStream) -> None:
        try:
            # A worker that hands over names the job in its HELLO. All other peers have it in their certificate.
            is_worker = stream.peer.role is Role.SHUFFLE_WORKER
            job = None if is_worker else self._store.job(stream.peer.job_id)
            with self._session(Session(stream, job, self._config.frame_seconds)) as session:
                self._greet(session)
        except ShuffleError as error:
            self._refuse(str(stream.peer), error)
            with contextlib.suppress(StreamBroken):
                stream.write_all(pack_error(error))
        except StreamBroken as error:
            _LOG.info("%s", error)

    def _greet(self, session: Session) -> None:
        session.deadline = time.monotonic() + self._config.handshake_seconds
        header = session.next_header()
        if header is None:
            return
        if header.kind is not FrameType.HELLO:
            raise FrameRefused(f"the first frame is {header.kind.name} instead of HELLO")
        hello = parse_hello(session.payload(header))
        self._check_job(session, hello)
        with contextlib.ExitStack() as stack:
            stack.enter_context(session.job.places.holding()).take(1)
            connection = (PushConnection if hello.direction == "push" else FetchConnection)(session, self._store)
            stack.callback(connection.close)
            credit = connection.credit if isinstance(connection, PushConnection) else 0
            session.send(Header(FrameType.HELLO_OK, request=header.request, aux=credit).pack())
            _LOG.debug("%s: %s", session.stream.peer, hello.direction)
            connection.serve()

    def _check_job(self, session: Session, hello: Hello) -> None:
        peer = session.stream.peer
        if peer.role is Role.SHUFFLE_WORKER:
            if hello.direction != "push":
                raise JobNotAllowed("a shuffle worker may push here but reads nothing")
            job = self._store.job(hello.job)
            job.check_expected(peer.name)
            session.job = job
            _LOG.info("%s hands over job %s", peer, job.job_id)
        elif hello.job:
            raise FrameRefused("the HELLO names a job", "leave it out: the job is in the certificate")

    @contextlib.contextmanager
    def _session(self, session: Session) -> Iterator[Session]:
        peer = str(session.stream.peer)
        with self._lock:
            if self._per_peer[peer] >= self._config.max_connections_per_peer:
                raise ShuffleUnavailable(f"{peer} has {self._per_peer[peer]} connections open already")
            if len(self._sessions) >= self._config.max_connections:
                raise ShuffleUnavailable(
                    f"{self._config.max_connections} connections are open already", "raise shuffle.max_connections"
                )
            self._per_peer[peer] += 1
            self._sessions.add(session)
        try:
            if self._stopping.is_set():
                raise ShuffleUnavailable("the worker is stopping")
            yield session
        finally:
            with self._lock:
                self._sessions.discard(session)
                self._per_peer[peer] -= 1
                if not self._per_peer[peer]:
                    del self._per_peer[peer]

    def _refuse(self, whom: str, error: SluiceError) -> None:
        self.refused += 1
        kind = "not admitted" if isinstance(error, PeerRefused) else "refused"
        _LOG.warning("%s: %s: %s", whom, kind, printable(str(error))[:500])

    def _guard_loop(self) -> None:
        while not self._stopping.wait(GUARD_SECONDS):
            for look in (self._end_late, self._look_for_revoked):
                try:
                    look()
                except Exception:  # noqa: BLE001  # the loop must go on: no other thread checks the connections
                    _LOG.exception("the check of the connections failed, and is repeated")

    def _end_late(self) -> None:
        now = time.monotonic()
        with self._lock:
            for raw, deadline in self._raw.items():
                if now > deadline:
                    abort_socket(raw)
            late = [session for session in self._sessions if now > session.deadline]
        for session in late:
            _LOG.warning("%s: connection ended: the peer took too long for a frame", session.stream.peer)
            session.stream.abort()

    def _look_for_revoked(self) -> None:
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        version = self._identity.revoked_peers.look()
        if version != self._seen:
            self._end_revoked()
            self._seen = version

    def _end_revoked(self) -> None:
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            if reason := session.stream.revocation(self._identity):
                _LOG.warning("%s: connection ended: %s", session.stream.peer, reason)
                session.stream.abort()
