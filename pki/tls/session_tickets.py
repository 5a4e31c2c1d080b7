"""Whether the cryptography wheel's OpenSSL, as this process has initialised it, sends session tickets as a server."""

from __future__ import annotations

import datetime as dt
import functools

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from OpenSSL import SSL

_MAX_FLIGHT_BYTES = 1 << 16
_YEAR = dt.timedelta(days=365)


@functools.cache
def sends_tickets() -> bool:
    """Test whether a server in memory sends anything after its handshake, which can only be tickets.

    This tests OpenSSL itself, because a missing or wrong configuration file is no error for it. Takes about two
    milliseconds, once.
    """
    ends = SSL.Connection(_server_context(), None), SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), None)
    server, client = ends
    server.set_accept_state()
    client.set_connect_state()
    done: set[SSL.Connection] = set()
    while len(done) < len(ends):
        for end, other in ((client, server), (server, client)):
            try:
                end.do_handshake()
                done.add(end)
            except SSL.WantReadError:
                pass
            if len(done) < len(ends):
                other.bio_write(end.bio_read(_MAX_FLIGHT_BYTES))
    try:
        return bool(server.bio_read(_MAX_FLIGHT_BYTES))
    except SSL.WantReadError:
        return False


def _server_context() -> SSL.Context:
    """A context with the ticket settings of a bulk server, and an unverified certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nobody")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _YEAR)
        .not_valid_after(now + _YEAR)
        .sign(key, hashes.SHA256())
    )
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_options(SSL.OP_NO_TICKET)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.use_certificate(certificate)
    context.use_privatekey(key)
    return context
