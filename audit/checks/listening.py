"""Which sockets listen, at which addresses, and for which clients: registry, kernel, and a first connection."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from pathlib import Path

from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import TLS_KINDS, Evidence, Foreign, Kind, Severity, finding, not_examined, passed
from sluice.audit.subject import Subject
from sluice.audit.wire import Content, printable

_GREETINGS = (
    ("an HTTP/1.1 request", b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
    ("an HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
    ("nothing, to hear who speaks first", b""),
)

_CHALLENGES = b"/.well-known/acme-challenge/"
_END = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_OTHER_REQUESTS = (
    b"GET /" + _END,
    b"GET /v1/overview" + _END,
    b"GET /login" + _END,
    b"GET " + _CHALLENGES + _END,
    b"GET " + _CHALLENGES + b"A" * 43 + _END,
    b"GET " + _CHALLENGES + b"../../v1/overview" + _END,
    b"GET http://127.0.0.1/v1/overview" + _END,
    b"POST /v1/jobs" + _END.replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n"),
    b"OPTIONS *" + _END,
    b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n",
    _GREETINGS[1][1],
)
"""Requests that a listener for ACME challenges must not answer."""

MAX_ANSWER_BYTES = 4096
_REJECTIONS = (
    b"The plain HTTP request was sent to HTTPS port",  # nginx and derivatives
    b"speaking plain HTTP to an SSL-enabled server port",  # Apache
    b"Client sent an HTTP request to an HTTPS server",  # Go: Caddy, Traefik, Kubernetes
    b"This combination of host and port requires TLS",  # Tomcat
)
"""Answers of servers that refuse a request without TLS."""


def _undeclared(subject: Subject) -> Evidence:
    listener = subject.listener
    where = listener.path or ", ".join(f"{host}:{listener.port}" for host in listener.bound)
    return finding("compared the kernel's socket table with the cluster's registry", f"{listener.process} at {where}")


def _bound_as_declared(subject: Subject) -> Evidence:
    listener = subject.listener
    if not listener.bound:
        return not_examined("the kernel's socket table was not looked at")
    done = "compared the address in the kernel's socket table with the declared one"
    wide = [host for host in listener.bound if host != listener.host and ipaddress.ip_address(host).is_unspecified]
    if listener.container:
        return passed(done, f"bound to {', '.join(listener.bound)} in the container's own networks")
    if wide and listener.kind is not Kind.UNDECLARED:
        return finding(done, f"declared {listener.place}, bound to {', '.join(wide)}: every interface")
    return passed(done, f"bound to {', '.join(listener.bound)}")


def _reachable(subject: Subject) -> Evidence:
    done = f"connected to {subject.listener.place}"
    if why := subject.unreachable:
        return finding(done, f"unreachable: {why}; nothing could be examined")
    return passed(done, "connected")


def _plaintext(subject: Subject) -> Evidence:
    tried, rejected = [], False
    for what, greeting in _GREETINGS:
        answer = _answer(subject, greeting)
        if not answer or answer[0] == Content.ALERT:
            tried.append(what)
        elif rejects_plaintext(answer) or (rejected and _is_error(answer)):
            tried.append(f"{what} (rejected with an HTTP error)")
            rejected = True
        else:
            return finding(f"sent {what} without TLS", f"answered: {printable(answer)}")
    expected = "no answer but a TLS alert or the end of the connection"
    return passed(f"sent without TLS: {'; '.join(tried)}", "no request was served" if rejected else expected)


def rejects_plaintext(answer: bytes) -> bool:
    """Whether an HTTP answer only says that this port speaks TLS, as web servers do before they close."""
    return _is_error(answer) and any(phrase in answer for phrase in _REJECTIONS)


def _is_error(answer: bytes) -> bool:
    """Whether it is an HTTP error for the request itself (400) or its version (505): nothing was served."""
    version, _, rest = answer.partition(b" ")
    return version in {b"HTTP/1.0", b"HTTP/1.1"} and rest[:3] in {b"400", b"505"}


def _answer(subject: Subject, greeting: bytes) -> bytes:
    """Read until the connection ends, nothing comes for a while, or ``MAX_ANSWER_BYTES`` were read."""
    answer = b""
    try:
        with socket.create_connection(subject.listener.address, timeout=subject.options.timeout) as plain:
            plain.settimeout(subject.options.listen)
            if greeting:
                plain.sendall(greeting)
            while len(answer) < MAX_ANSWER_BYTES and (data := plain.recv(MAX_ANSWER_BYTES - len(answer))):
                answer += data
    except OSError:
        pass
    return answer


def _challenges_only(subject: Subject) -> Evidence:
    done = f"sent {len(_OTHER_REQUESTS)} requests that are no challenge"
    for request in _OTHER_REQUESTS:
        answer = _answer(subject, request)
        head = answer.partition(b"\r\n\r\n")[0].lower()
        refused = answer.startswith(b"HTTP/1.1 4") and b"\r\nlocation:" not in head and b"\r\nset-cookie:" not in head
        if answer and not refused:
            line = printable(request.partition(b"\r\n")[0])
            return finding(done, f"{line} was answered: {printable(answer)}")
    return passed(done, "each refused with a 4xx, or not answered")


def _loopback(subject: Subject) -> Evidence:
    done = "looked at the address it is bound to"
    hosts = subject.listener.bound or (subject.listener.host,)
    outside = [host for host in hosts if not _is_loopback(host)]
    if outside:
        return finding(done, f"no TLS, and bound to {', '.join(outside)}: reachable from other machines")
    return passed(done, f"bound to {', '.join(hosts)}: this machine alone")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


JOB_UIDS = range(0x70000000, 0x78000000)
"""Users and groups that :mod:`sluice.runtime.sandbox` gives to jobs, one for each job."""


def _socket_private(subject: Subject) -> Evidence:
    path = Path(subject.listener.path)
    done = f"looked at owner and mode of {path} and of its directory"
    try:
        found, directory = path.stat(), path.parent.stat()
    except OSError as error:
        return finding(done, f"cannot be looked at: {error.strerror}")
    modes = f"socket {stat.S_IMODE(found.st_mode):04o}, directory {stat.S_IMODE(directory.st_mode):04o}"
    owner = directory.st_uid if subject.listener.container or directory.st_uid in JOB_UIDS else os.geteuid()
    if found.st_uid != owner:
        return finding(done, f"the socket belongs to user id {found.st_uid}; {modes}")
    # Users who cannot enter the directory cannot connect, whatever the socket's own mode.
    open_directory = directory.st_mode & (0o007 if directory.st_gid in JOB_UIDS else 0o077)
    open_socket = found.st_mode & (0o006 if found.st_gid in JOB_UIDS else 0o066)
    if open_directory and open_socket:
        return finding(done, f"others can connect: {modes}")
    return passed(done, modes)


CHECKS = (
    Check(
        id="LSN-01",
        title="Every listener is declared",
        problem="undeclared listener",
        severity=Severity.HIGH,
        kinds=frozenset({Kind.UNDECLARED}),
        expected="every listening socket of the cluster's processes is in its registry",
        references=(ref.ASVS_SURFACE,),
        remedy="Find out what opened it and switch it off, or have it published in the registry with a TLS listener.",
        run=_undeclared,
        connects=False,
    ),
    Check(
        id="LSN-02",
        title="The listener is bound as declared",
        problem="bound to more addresses than declared",
        severity=Severity.HIGH,
        kinds=TLS_KINDS | {Kind.LOCAL, Kind.CHALLENGES},
        expected="bound to the declared address, not to every interface",
        references=(ref.ASVS_SURFACE,),
        remedy="Bind to the address that is published ([jobmanager], [ca] or [gateway] host).",
        run=_bound_as_declared,
        connects=False,
        ours_only=True,
    ),
    Check(
        id="LSN-03",
        title="The listener is reachable",
        problem="unreachable",
        severity=Severity.HIGH,
        kinds=TLS_KINDS | {Kind.HTTP, Kind.CHALLENGES},
        expected="every declared listener accepts connections",
        references=(ref.ASVS_SURFACE,),
        remedy="Start the process, remove it from the registry, or let this machine reach it.",
        foreign=Foreign(remedy="Correct host and port in the target file, or audit from where it is reachable."),
        run=_reachable,
        connects=False,
    ),
    Check(
        id="LSN-04",
        title="Only its owner can reach the Unix socket",
        problem="unix socket open to other users",
        severity=Severity.HIGH,
        kinds=frozenset({Kind.SOCKET}),
        expected="a socket of mode 0600, or a directory of mode 0700, owned by the cluster's user",
        references=(ref.ASVS_ACCESS,),
        remedy="chmod 600 the socket and 700 its directory.",
        run=_socket_private,
        connects=False,
    ),
    Check(
        id="LSN-05",
        title="Listeners without TLS are bound to loopback",
        problem="unencrypted service reachable from other machines",
        severity=Severity.CRITICAL,
        kinds=frozenset({Kind.LOCAL}),
        expected="bound to a loopback address",
        references=(ref.ASVS_TRANSPORT, ref.NIST_VERSIONS),
        remedy="Bind it to 127.0.0.1, or put it behind mutual TLS.",
        run=_loopback,
        connects=False,
    ),
    Check(
        id="LSN-06",
        title="The listener for ACME challenges answers nothing else",
        problem="listener for ACME challenges answers other requests",
        severity=Severity.CRITICAL,
        kinds=frozenset({Kind.CHALLENGES}),
        expected="4xx or no answer: no redirect, no cookie, nothing forwarded",
        references=(ref.ASVS_TRANSPORT, "RFC 8555, 8.3 (http-01)"),
        remedy='Choose gateway.acme.challenge = "tls-alpn-01", which needs no such listener, and report this.',
        run=_challenges_only,
    ),
    Check(
        id="TLS-01",
        title="Plaintext is not answered",
        problem="plaintext accepted",
        severity=Severity.CRITICAL,
        expected="a TLS alert, a closed connection, or an HTTP error saying that the port speaks TLS",
        references=(ref.ASVS_TRANSPORT, ref.NIST_VERSIONS),
        remedy="Enable TLS on this port and disable plaintext; no port should speak both.",
        run=_plaintext,
    ),
)
