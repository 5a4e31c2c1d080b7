"""Cipher suites without authentication or encryption, and weak ones."""

from __future__ import annotations

from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import Evidence, Severity, finding, passed
from sluice.audit.subject import Subject
from sluice.audit.wire import (
    ANONYMOUS_SUITES,
    SUITES,
    UNENCRYPTED_SUITES,
    UNPROTECTED_SUITES,
    WEAK_TLS12_SUITES,
    WEAK_TLS13_SUITES,
    ClientHello,
    ServerHello,
    Version,
    name_of,
)

MAX_SUITES_TOLD = 64
_GROUPS = (0x0017, 0x0018, 0x001D, 0x0019)


def _unprotected(subject: Subject) -> Evidence:
    done = f"offered suites without authentication ({len(ANONYMOUS_SUITES)}) or encryption ({len(UNENCRYPTED_SUITES)})"
    taken = _taken(subject, UNPROTECTED_SUITES)
    if not taken:
        return passed(done, "all refused")
    missing = [
        what
        for what, suites in (("authentication", ANONYMOUS_SUITES), ("encryption", UNENCRYPTED_SUITES))
        if any(suite in suites for suite in taken)
    ]
    return finding(done, f"accepted, without {' and without '.join(missing)}: {_named(taken)}")


def _weak(subject: Subject) -> Evidence:
    weak = tuple(suite for suite in (*WEAK_TLS13_SUITES, *WEAK_TLS12_SUITES) if suite not in UNPROTECTED_SUITES)
    done = f"offered {len(weak)} weak suites, in TLS 1.3 and in TLS 1.2"
    taken = _taken(subject, weak)
    if not taken:
        return passed(done, "all refused")
    worst = max((_severity(suite) for suite in taken), key=lambda severity: severity.rank)
    return finding(done, f"accepted: {_named(taken)}", severity=worst if subject.listener.foreign else None)


def _severity(suite: int) -> Severity:
    """The severity for a foreign server, which may accept the suite for old clients."""
    name = name_of(SUITES, suite)
    if "RC4" in name or "_DES_" in name:
        return Severity.HIGH
    if "3DES" in name or "DHE" not in name:
        return Severity.MEDIUM
    return Severity.LOW


def _taken(subject: Subject, suites: tuple[int, ...]) -> list[int]:
    """Find all accepted suites: offer all, remove the chosen one, and offer the rest again."""
    taken: list[int] = []
    for version in (Version.TLS13, Version.TLS12):
        left = tuple(suite for suite in suites if (suite in WEAK_TLS13_SUITES) is (version is Version.TLS13))
        while left and len(taken) < MAX_SUITES_TOLD:
            answer = subject.offer(ClientHello(versions=(version,), suites=left, groups=_GROUPS))
            if not isinstance(answer, ServerHello) or answer.version != version or answer.suite not in left:
                break
            taken.append(answer.suite)
            left = tuple(suite for suite in left if suite != answer.suite)
    return taken


def _named(suites: list[int]) -> str:
    return ", ".join(
        f"{name_of(SUITES, suite)} ({(Version.TLS13 if suite in WEAK_TLS13_SUITES else Version.TLS12).label})"
        for suite in suites
    )


CHECKS = (
    Check(
        id="TLS-19",
        title="Cipher suites without authentication or encryption are refused",
        problem="cipher suite without authentication or encryption accepted",
        severity=Severity.CRITICAL,
        expected="no anonymous suite and no NULL cipher is accepted",
        references=(ref.RFC9150, "RFC 9325, 4.1 (NULL and anonymous suites)", ref.NIST_SUITES, ref.ASVS_SUITES),
        remedy="Take anonymous and NULL suites out (OpenSSL: !aNULL:!eNULL): with the first, anybody between client "
        "and server can be the server; with the second, they can read everything.",
        run=_unprotected,
    ),
    Check(
        id="TLS-05",
        title="Weak cipher suites are refused",
        problem="weak cipher suite accepted",
        severity=Severity.HIGH,
        expected="no suite without forward secrecy or an AEAD cipher is accepted",
        references=(ref.RFC8446_SUITES, ref.NIST_SUITES, ref.ASVS_SUITES),
        remedy="Allow TLS_AES_*_GCM_* and TLS_CHACHA20_POLY1305_SHA256 only (below TLS 1.3: ECDHE with AEAD).",
        run=_weak,
    ),
)
