"""Session resumption: whether a client can return without presenting its certificate."""

from __future__ import annotations

from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import Evidence, Foreign, Severity, finding, not_examined, passed
from sluice.audit.subject import Subject
from sluice.audit.wire import GOOD_TLS12_SUITES, ClientHello, Extension, ServerHello, Ticket, Version

_GREETINGS = {
    "h2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "http/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}
"""The first data of a client, by application protocol."""


def _tickets(subject: Subject) -> list[Ticket] | None:
    """Tickets for an admitted client; None when nobody is admitted. They are the first data."""
    if subject.handshake is None:
        return None
    with subject.client(subject.welcome) as client:
        client.connect()
        verdict = client.verdict(subject.options.listen)
        if verdict.refused:
            return None
        greeting = _GREETINGS.get(client.handshake.alpn)
        if greeting and not verdict.tickets:
            # Some servers (BoringSSL) delay their tickets until they send data.
            client.send(greeting)
            verdict = client.verdict(subject.options.listen)
    return verdict.tickets


def _resumption(subject: Subject) -> Evidence:
    done = "completed a handshake that allows resumption, and read what came after it"
    old = subject.offer(ClientHello(versions=(Version.TLS12,), suites=GOOD_TLS12_SUITES, session_id=b""))
    if isinstance(old, ServerHello) and old.version == Version.TLS12:
        if Extension.SESSION_TICKET in old.extensions:
            return finding(done, "TLS 1.2: a session ticket is announced")
        if old.session_id:
            return finding(done, "TLS 1.2: a session id is given to come back with")
    tickets = _tickets(subject)
    if tickets is None:
        return not_examined("only a client that is admitted gets tickets, and the audit has no such identity here")
    if tickets:
        longest = max(ticket.lifetime_seconds for ticket in tickets)
        return finding(done, f"{len(tickets)} session tickets, good for up to {longest} s")
    return passed(done, "no session ticket")


def _early_data(subject: Subject) -> Evidence:
    done = "looked for max_early_data_size in session tickets"
    tickets = _tickets(subject)
    if tickets is None:
        return not_examined("only a client that is admitted gets tickets, and the audit has no such identity here")
    early = max((ticket.max_early_data_bytes for ticket in tickets), default=0)
    if early:
        return finding(done, f"up to {early} bytes may be sent before the handshake")
    return passed(done, "none" if tickets else "no session ticket")


CHECKS = (
    Check(
        id="TLS-09",
        title="Sessions cannot be resumed",
        problem="session resumption enabled",
        severity=Severity.MEDIUM,
        expected="no session ticket: a returning client is verified again, since it may have been revoked",
        references=(ref.RFC8446_TICKETS, ref.ASVS_REVOCATION),
        remedy="Switch session tickets and session caches off (num_tickets = 0 and OP_NO_TICKET; "
        "disable_stateless_session_resumption in Envoy).",
        run=_resumption,
        foreign=Foreign(
            severity=Severity.INFO,
            expected="no session ticket where client certificates can be revoked; harmless elsewhere",
            remedy="Leave it on for speed, or switch it off where clients are known by their certificates: a client "
            "that resumes is not checked for revocation again.",
        ),
    ),
    Check(
        id="TLS-10",
        title="No early data (0-RTT)",
        problem="early data (0-RTT) enabled",
        severity=Severity.HIGH,
        expected="no ticket allows early data: it can be replayed",
        references=(ref.RFC8446_EARLY_DATA,),
        remedy="Switch early data off (max_early_data_size 0).",
        run=_early_data,
    ),
)
