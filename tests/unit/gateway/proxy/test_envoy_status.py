"""When Envoy counts as having loaded the resources that it was given."""

from __future__ import annotations

import base64
import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.proxy.envoy_status import has_loaded, report_of
from sluice.gateway.proxy.secret_feed import Given, Side
from sluice.pki.authorities.signing import to_pem
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.key_identifiers import key_id
from sluice.pki.x509.profiles import AuthorityKind

NOW = dt.datetime(2027, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    root = tmp_path_factory.mktemp("pki")
    issuer = LocalIssuer(root / "pki", PkiConfig(trust_domain="test"), clock=lambda: NOW)
    issuer.ensure_authorities()
    issuer.revocations.refresh(AuthorityKind.INTERNAL)
    current = issuer.revocations.current(AuthorityKind.INTERNAL)
    assert current is not None
    directory: Path = root / "envoy"
    issuer.issue_to(directory, SpiffeId.process("test", Role.GATEWAY, "envoy"))
    material, _ = read_identity(directory)
    return Given(Side.INTERNAL, material, material.anchors, (current,))


def answers(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the answers of an Envoy that has loaded everything."""
    crl = base64.b64encode(given.lists[0].pem).decode()
    secrets = {
        "internal": {"tls_certificate": {"certificate_chain": {"inline_string": given.material.chain_pem.decode()}}},
        "internal-trust": {
            "validation_context": {
                "trusted_ca": {"inline_string": to_pem(*given.anchors).decode()},
                "crl": {"inline_bytes": crl},
            }
        },
    }
    serial = f"{given.material.leaf.serial_number:040x}"
    return (
        {"configs": [{"name": name, "secret": secret} for name, secret in secrets.items()]},
        {"certificates": [{"ca_cert": [], "cert_chain": [{"serial_number": serial}]}]},
    )


def test_envoy_has_loaded_when_all_given_secrets_are_reported(given: Given) -> None:
    assert has_loaded(given, *answers(given))


@pytest.mark.parametrize("missing", ["internal", "internal-trust", "trusted_ca", "crl", "certificates"])
def test_envoy_has_not_loaded_when_a_given_secret_is_missing(given: Given, missing: str) -> None:
    secrets, certificates = answers(given)
    secrets["configs"] = [entry for entry in secrets["configs"] if entry["name"] != missing]
    for entry in secrets["configs"]:
        entry["secret"].get("validation_context", {}).pop(missing, None)
    certificates.pop(missing, None)
    assert not has_loaded(given, secrets, certificates)


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"configs": 1}, {"configs": ["x"], "certificates": [{"cert_chain": 0}]}]
)
def test_envoy_has_not_loaded_when_the_answer_has_another_shape(given: Given, answer: object) -> None:
    assert not has_loaded(given, answer, answer)


def test_envoy_has_not_loaded_when_it_still_uses_a_withdrawn_crl(given: Given) -> None:
    assert not has_loaded(Given(Side.INTERNAL, given.material, given.anchors, ()), *answers(given))


def test_the_trust_report_contains_the_loaded_certificate_anchors_and_crls(given: Given) -> None:
    report = report_of(given, 7, 1.5, NOW)
    (anchor,) = given.anchors
    assert (report.pid, report.started, report.program) == (7, 1.5, "envoy")
    assert report.anchors == (key_id(anchor),)
    assert report.issuer == key_id(anchor)
    assert report.crls == {key_id(anchor): given.lists[0].number}
