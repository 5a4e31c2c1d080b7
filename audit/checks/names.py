"""Whether the certificate is valid for the name by which clients know the server (RFC 9525)."""

from __future__ import annotations

import ipaddress

from cryptography import x509
from cryptography.x509.oid import NameOID

from sluice.audit.check import Check
from sluice.audit.checks import references as ref
from sluice.audit.model import Evidence, Listener, Severity, a_labels, finding, not_examined, passed
from sluice.audit.subject import Subject
from sluice.core import is_ip_address
from sluice.pki import Channel

MAX_NAMES_TOLD = 10
MIN_LABELS_BELOW_WILDCARD = 2
"""At least two labels must follow a wildcard: ``*.com`` would match hosts of many owners."""


def expected_name(listener: Listener) -> str:
    """The name or address by which clients identify ``listener``; empty when they do not use names.

    Inside our cluster the SPIFFE ID identifies a peer, whatever its address.
    """
    if listener.server_name:
        return listener.server_name
    if listener.channel is Channel.EDGE:
        return (
            "" if is_ip_address(listener.host) and ipaddress.ip_address(listener.host).is_unspecified else listener.host
        )
    return listener.host if listener.foreign and not is_ip_address(listener.host) else ""


def name_matches(presented: str, name: str) -> bool:
    """Whether a DNS name in a certificate stands for ``name`` (RFC 9525, 6.3); both as A-labels.

    A wildcard is the whole left-most label, and stands for exactly one label.
    """
    presented, name = presented.rstrip(".").lower(), name.rstrip(".").lower()
    if "*" not in presented:
        return presented == name
    first, _, rest = presented.partition(".")
    own, _, above = name.partition(".")
    if first != "*" or "*" in rest or rest.count(".") + 1 < MIN_LABELS_BELOW_WILDCARD:
        return False
    return bool(own) and rest == above


def _names(subject: Subject) -> Evidence:
    leaf = subject.leaf
    if leaf is None:
        return not_examined("the listener shows no certificate")
    wanted = expected_name(subject.listener)
    if not wanted:
        if subject.listener.foreign:
            return not_examined("nobody said by which name clients know it (server_name of the target)")
        return not_examined("its peers identify it by its SPIFFE ID, not by a name")
    done = f"compared {wanted} with the subject alternative names of the certificate"
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return finding(done, f"no subject alternative names{_common_name(leaf)}")
    except ValueError as error:
        return finding(done, f"the subject alternative names cannot be read: {error}")
    if is_ip_address(wanted):
        addresses = names.get_values_for_type(x509.IPAddress)
        fits = ipaddress.ip_address(wanted) in addresses
    else:
        fits = any(name_matches(each, a_labels(wanted)) for each in names.get_values_for_type(x509.DNSName))
    told = _told(names)
    return passed(done, f"valid for {told}") if fits else finding(done, f"valid for {told} only{_common_name(leaf)}")


def _told(names: x509.SubjectAlternativeName) -> str:
    hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    more = f" and {len(hosts) - MAX_NAMES_TOLD} more" if len(hosts) > MAX_NAMES_TOLD else ""
    return (", ".join(hosts[:MAX_NAMES_TOLD]) or "no host name or address") + more


def _common_name(leaf: x509.Certificate) -> str:
    """The common name, for the report: old tools use it, RFC 9525, 2 and current clients do not."""
    common = [str(each.value) for each in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return f"; its common name, {common[0]!r}, does not count" if common else ""


CHECKS = (
    Check(
        id="CRT-10",
        title="The certificate is valid for the server's name",
        problem="certificate not valid for the server name",
        severity=Severity.HIGH,
        expected="a DNS name or IP address among the subject alternative names that is the one clients use",
        references=("RFC 9525, 6 (matching of names)", "RFC 6125", ref.ASVS_CERTIFICATES),
        remedy="Issue it with the name or address that clients use as a subject alternative name: "
        "clients that accept this one do not check whom they talk to.",
        run=_names,
    ),
)
