"""Whether a certificate is valid for a name, by RFC 9525, and by OpenSSL. No sockets."""

from __future__ import annotations

import datetime as dt
import ipaddress
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from sluice.audit.catalogue import by_id
from sluice.audit.checks.names import expected_name, name_matches
from sluice.audit.model import (
    Kind,
    Listener,
    Outcome,
    Result,
)
from sluice.audit.runner import run_check
from sluice.audit.subject import Options, Subject
from sluice.audit.wire.client import Handshake
from sluice.pki.channels import Channel

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def certificate(*names: str, common_name: str = "common.example") -> x509.Certificate:
    """A self-signed certificate for these DNS names and IP addresses.

    Without names it has no subject alternative name extension.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + dt.timedelta(days=1))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
    return builder.sign(key, hashes.SHA256())


def _general(name: str) -> x509.GeneralName:
    if name.startswith("dns:"):
        return x509.DNSName(name.removeprefix("dns:"))
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def result(leaf: x509.Certificate, server_name: str) -> Result:
    """The result of check CRT-10 on a server known as ``server_name``."""
    listener = Listener(name="x", kind=Kind.SERVER, host="192.0.2.1", port=1, server_name=server_name, foreign=True)
    shown = Handshake(version=0x0304, certificates=(leaf,))
    return run_check(Subject(listener, Options(clock=lambda: NOW), _shown=[shown]), by_id()["CRT-10"])


ROWS = [
    pytest.param(("a.example",), "a.example", True, id="the same name"),
    pytest.param(("A.Example",), "a.eXample.", True, id="case and the root's dot make no difference"),
    pytest.param(("b.example", "a.example"), "a.example", True, id="the second of two"),
    pytest.param(("b.example",), "a.example", False, id="another name"),
    pytest.param(("example",), "a.example", False, id="the domain above"),
    pytest.param(("a.example.org",), "a.example", False, id="the name is a prefix"),
    pytest.param(("*.b.example",), "a.b.example", True, id="a wildcard"),
    pytest.param(("*.b.example",), "b.example", False, id="a wildcard stands for one label, not for none"),
    pytest.param(("*.b.example",), "x.a.b.example", False, id="a wildcard stands for one label, not for two"),
    pytest.param(("a.*.example",), "a.b.example", False, id="a wildcard that is not left-most"),
    pytest.param(("*.*.example",), "a.b.example", False, id="two wildcards"),
    pytest.param(("*.example",), "a.example", False, id="a wildcard for a whole top-level domain"),
    pytest.param(("192.0.2.7",), "192.0.2.7", True, id="an address"),
    pytest.param(("192.0.2.8",), "192.0.2.7", False, id="another address"),
    pytest.param(("2001:db8::1",), "2001:0db8:0::1", True, id="an IPv6 address, written differently"),
    pytest.param(("dns:192.0.2.7",), "192.0.2.7", False, id="an address as a DNS name"),
    pytest.param(("a.example",), "192.0.2.7", False, id="an address, and no address in it"),
    pytest.param(("xn--bcher-kva.example",), "bücher.example", True, id="an internationalized name"),
]


@pytest.mark.parametrize(("names", "wanted", "fits"), ROWS)
def test_a_certificate_is_valid_for_the_names_in_it_and_no_others(
    names: tuple[str, ...], wanted: str, *, fits: bool
) -> None:
    told = result(certificate(*names), wanted)
    assert told.outcome is (Outcome.PASSED if fits else Outcome.FINDING), told.seen


@pytest.mark.parametrize(("names", "wanted", "fits"), [row for row in ROWS if "ü" not in str(row.values[1])])
def test_openssl_agrees_on_each_name(names: tuple[str, ...], wanted: str, *, fits: bool, tmp_path: Path) -> None:
    """The common name is left empty, since OpenSSL falls back on it where RFC 9525 does not."""
    path = tmp_path / "leaf.pem"
    path.write_bytes(certificate(*names, common_name="-").public_bytes(Encoding.PEM))
    option = "-checkip" if ":" in wanted or wanted.replace(".", "").isdigit() else "-checkhost"
    done = subprocess.run(
        ["openssl", "x509", "-noout", "-in", path, option, wanted.rstrip(".")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("does match" in done.stdout) is fits, done


@pytest.mark.parametrize(
    "presented",
    ["*", "f*.b.example", "*f.b.example", "a*z.b.example", "xn--*.b.example", "a.b.example\0.evil.example", ""],
)
def test_partial_wildcards_and_malformed_names_match_nothing(presented: str) -> None:
    for name in ("a.b.example", "foo.b.example", "az.b.example", "xn--caf-dma.b.example"):
        assert not name_matches(presented, name)


def test_the_common_name_is_not_used_and_the_finding_states_it() -> None:
    told = result(certificate(common_name="a.example"), "a.example")
    assert told.outcome is Outcome.FINDING
    assert "common name, 'a.example', does not count" in told.seen
    assert told.problem == "certificate not valid for the server name"


def test_a_long_list_of_names_is_abbreviated_in_the_finding() -> None:
    told = result(certificate(*(f"h{number}.example" for number in range(40))), "a.example")
    assert "and 30 more" in told.seen


@pytest.mark.parametrize(
    ("listener", "expected"),
    [
        (Listener(name="x", kind=Kind.SERVER, host="10.0.0.5", foreign=True), ""),
        (Listener(name="x", kind=Kind.SERVER, host="spark.example", foreign=True), "spark.example"),
        (
            Listener(name="x", kind=Kind.SERVER, host="10.0.0.5", server_name="spark.example", foreign=True),
            "spark.example",
        ),
        (Listener(name="x", kind=Kind.SERVER, host="127.0.0.1", channel=Channel.EDGE), "127.0.0.1"),
        (Listener(name="x", kind=Kind.MUTUAL, host="127.0.0.1", channel=Channel.RPC), ""),
    ],
)
def test_the_expected_name_is_the_server_name_or_else_the_host(listener: Listener, expected: str) -> None:
    assert expected_name(listener) == expected


def test_an_address_is_never_sent_as_server_name() -> None:
    listener = Listener(name="x", kind=Kind.SERVER, host="h", port=1, server_name="192.0.2.7")
    assert listener.asked_name == b""
    named = Listener(name="x", kind=Kind.SERVER, host="h", port=1, server_name="bücher.example")
    assert named.asked_name == b"xn--bcher-kva.example"
