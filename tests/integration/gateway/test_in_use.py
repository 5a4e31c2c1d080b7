"""`sluice run envoy` reports the certificates that Envoy has loaded, not those in the files."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives import hashes

from sluice.core.home import Home
from sluice.pki.identities.directory import read_identity
from sluice.pki.revocation.crl import load_crls
from sluice.pki.trust.reports import TrustReport, read_reports
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from tests.integration.gateway.conftest import BackgroundLoop, EdgeAuthority, eventually
from tests.integration.gateway.network import ENVOY, Generation, NetworkGateway, install


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory) -> tuple[Generation, Generation]:
    return Generation(tmp_path_factory.mktemp("a")), Generation(tmp_path_factory.mktemp("b"))


@pytest.fixture
def network(
    edge_authority: EdgeAuthority, background: BackgroundLoop, generations: tuple[Generation, Generation]
) -> Iterator[NetworkGateway]:
    directory = Path(tempfile.mkdtemp(prefix="slc"))
    gateway = NetworkGateway(Home.at(directory), edge_authority, background, generations[0])
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()
        shutil.rmtree(directory)


def reported(directory: Path) -> TrustReport | None:
    reports, unreadable = read_reports(directory)
    assert unreadable == []
    assert len(reports) <= 1
    return reports[0] if reports else None


def says(directory: Path) -> bool:
    """Return whether the report matches the files in ``directory``."""
    material, _ = read_identity(directory)
    report = reported(directory)
    return report is not None and (report.leaf, report.issuer, report.anchors) == (
        material.leaf.fingerprint(hashes.SHA256()).hex(),
        issuer_id(material.leaf),
        tuple(key_id(anchor) for anchor in material.anchors),
    )


def test_certificate_reports_follow_a_rotation_and_end_with_envoy(
    network: NetworkGateway, generations: tuple[Generation, Generation]
) -> None:
    old, new = generations
    for directory in (network.identity, network.envoy_identity):
        eventually(lambda directory=directory: says(directory), "there is no report")  # type: ignore[misc]
    report = reported(network.envoy_identity)
    assert report is not None
    assert psutil.Process(report.pid).name() == "envoy"
    assert (report.program, report.identity) == ("envoy", str(ENVOY))
    assert len(report.crls) == 1
    for signer, trusted in ((old, [old, new]), (new, [new, old]), (new, [new])):
        install(network.envoy_identity, ENVOY, signer, trusted)
        eventually(lambda: says(network.envoy_identity), "the report does not follow")
        report = reported(network.envoy_identity)
        assert report is not None
        lists = load_crls(b"".join(each.crl for each in trusted))
        assert sorted(report.crls) == sorted(report.anchors)
        assert len(lists) == len(report.crls)
    network.authority.issue(network.identity)
    eventually(lambda: says(network.identity), "the report of the public certificate does not follow")
    network.stop()
    assert reported(network.identity) is reported(network.envoy_identity) is None


def test_the_auth_service_reports_the_certificate_it_uses(network: NetworkGateway) -> None:
    eventually(lambda: says(network.auth_identity), "there is no report")
    report = reported(network.auth_identity)
    assert report is not None
    assert (report.program, report.pid) == ("auth", os.getpid())


def test_a_certificate_that_envoy_has_not_loaded_is_not_reported(
    network: NetworkGateway, generations: tuple[Generation, Generation], caplog: pytest.LogCaptureFixture
) -> None:
    eventually(lambda: says(network.envoy_identity), "there is no report")
    before = reported(network.envoy_identity)
    assert before is not None
    caplog.set_level(logging.INFO)
    told = caplog.text.count("Envoy got its internal identity")
    os.kill(before.pid, signal.SIGSTOP)
    try:
        install(network.envoy_identity, ENVOY, generations[0], list(generations))
        eventually(lambda: caplog.text.count("Envoy got its internal identity") > told, "it is not given to Envoy")
        assert reported(network.envoy_identity) == before
    finally:
        os.kill(before.pid, signal.SIGCONT)
    eventually(lambda: says(network.envoy_identity), "the report does not follow")
