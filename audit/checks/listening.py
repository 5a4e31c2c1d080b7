"""What listens, where, and for whom: by the registry, the kernel, and a first knock at the door."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from pathlib import Path

from audit.checks import references as ref
from audit.model import TLS_KINDS, Check, Evidence, Kind, Severity, finding, not_examined, passed
from audit.subject import Subject
from audit.wire.connection import printable
from audit.wire.numbers import Content

_GREETINGS = (
    ("an HTTP/1.1 request", b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
    ("an HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
    ("nothing, to hear who speaks first", b""),
)


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
    try:
        with socket.create_connection(subject.listener.address, timeout=subject.options.timeout):
            return passed(done, "connected")
    except OSError as error:
        return finding(done, f"not connected: {error.strerror or type(error).__name__}; nothing could be examined")


def _plaintext(subject: Subject) -> Evidence:
    tried = []
    for what, greeting in _GREETINGS:
        answer = _answer(subject, greeting)
        if answer and answer[0] != Content.ALERT:
            return finding(f"sent {what} without TLS", f"answered: {printable(answer)}")
        tried.append(what)
    return passed(f"sent without TLS: {'; '.join(tried)}", "no answer but a TLS alert or the end of the connection")


def _answer(subject: Subject, greeting: bytes) -> bytes:
    try:
        with socket.create_connection(subject.listener.address, timeout=subject.options.timeout) as plain:
            plain.settimeout(subject.options.listen)
            if greeting:
                plain.sendall(greeting)
            return plain.recv(256)
    except OSError:
        return b""


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


def _socket_private(subject: Subject) -> Evidence:
    path = Path(subject.listener.path)
    done = f"looked at owner and mode of {path} and of its directory"
    try:
        found, directory = path.stat(), path.parent.stat()
    except OSError as error:
        return finding(done, f"cannot be looked at: {error.strerror}")
    modes = f"socket {stat.S_IMODE(found.st_mode):04o}, directory {stat.S_IMODE(directory.st_mode):04o}"
    owner = directory.st_uid if subject.listener.container else os.geteuid()
    if found.st_uid != owner:
        return finding(done, f"the socket belongs to user id {found.st_uid}; {modes}")
    # Who may not enter the directory cannot connect, whatever the socket's own mode.
    open_directory = directory.st_mode & 0o077
    open_socket = found.st_mode & 0o066
    if open_directory and open_socket:
        return finding(done, f"others can connect: {modes}")
    return passed(done, modes)


CHECKS = (
    Check(
        id="LSN-01",
        title="Every listener is declared",
        severity=Severity.HIGH,
        kinds=frozenset({Kind.UNDECLARED}),
        expected="every listening socket of the cluster's processes is in its registry",
        references=(ref.ASVS_SURFACE,),
        remedy="Find out what opened it and switch it off, or have it published in the registry with a TLS listener.",
        run=_undeclared,
    ),
    Check(
        id="LSN-02",
        title="The listener is bound as declared",
        severity=Severity.HIGH,
        kinds=TLS_KINDS | {Kind.LOCAL},
        expected="bound to the declared address, not to every interface",
        references=(ref.ASVS_SURFACE,),
        remedy="Bind to the address that is published ([jobmanager], [ca] or [gateway] host).",
        run=_bound_as_declared,
    ),
    Check(
        id="LSN-03",
        title="The listener can be examined",
        severity=Severity.HIGH,
        kinds=TLS_KINDS | {Kind.HTTP},
        expected="what is declared listens",
        references=(ref.ASVS_SURFACE,),
        remedy="Start it, take it out of the registry or target file, or let this machine reach it.",
        run=_reachable,
    ),
    Check(
        id="LSN-04",
        title="The unix socket is for its owner alone",
        severity=Severity.HIGH,
        kinds=frozenset({Kind.SOCKET}),
        expected="mode 0600, or a directory of mode 0700, both of the cluster's user",
        references=(ref.ASVS_ACCESS,),
        remedy="chmod 600 the socket and 700 its directory.",
        run=_socket_private,
    ),
    Check(
        id="LSN-05",
        title="What speaks without TLS is for this machine alone",
        severity=Severity.CRITICAL,
        kinds=frozenset({Kind.LOCAL}),
        expected="bound to a loopback address",
        references=(ref.ASVS_TRANSPORT, ref.NIST_VERSIONS),
        remedy="Bind it to 127.0.0.1, or put it behind mutual TLS.",
        run=_loopback,
    ),
    Check(
        id="TLS-01",
        title="Plaintext is not answered",
        severity=Severity.CRITICAL,
        kinds=TLS_KINDS,
        expected="nothing but a TLS alert or the end of the connection",
        references=(ref.ASVS_TRANSPORT, ref.NIST_VERSIONS),
        remedy="Switch TLS on for this port, and plaintext off; do not let one port speak both.",
        run=_plaintext,
    ),
)
