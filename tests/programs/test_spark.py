"""Stock Spark configured by `sluice pki export --for spark`.

Driver and executor run in separate JVMs.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core.clock import utc_now
from sluice.pki.export.programs.catalogue import Program, export_for
from sluice.pki.identities.directory import read_identity
from tests.hostile import Hostile, TestPki
from tests.integration.programs.ports import client_context, exchange, let_in, presented, refuses, tail
from tests.integration.programs.spark_application import OTHER, SPARK, started

pytestmark = pytest.mark.timeout(600)

GET = b"GET /jobs/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Application:
    """A running Spark application whose job has finished."""

    pki: TestPki
    identity: Path
    report: dict[str, Any]

    @property
    def channels(self) -> list[int]:
        """The ports of RPC and block transfer."""
        return [int(self.report["rpc"]), *(int(each.rpartition(":")[2]) for each in self.report["blocks"])]

    @property
    def pages(self) -> int:
        """The port of the web pages."""
        return urlsplit(self.report["pages"]).port or 0


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Provide an application configured as exported, with the secret that the exported file asks for."""
    root = tmp_path_factory.mktemp("spark")
    pki = TestPki(root / "pki")
    identity, place = pki.directory(SPARK), root / "conf"
    export_for(Program.SPARK, identity, place, now=utc_now())
    with (place / "spark-defaults.conf").open("a") as file:
        file.write("spark.authenticate.secret of-this-test\nspark.ui.port 0\nspark.driver.host localhost\n")
    with started(root, "local-cluster[1,1,1024]") as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, tail(root / "log")
        yield Application(pki, identity, json.loads(said))
        process.communicate(timeout=60)  # the end of its input is its end


def test_driver_and_executor_exchange_a_shuffle(application: Application) -> None:
    assert application.report["sums"] == {str(rest): sum(range(rest, 1000, 3)) for rest in range(3)}
    assert len(application.channels) == 3, "RPC of the driver, blocks of driver and executor"


def test_every_channel_uses_tls_1_3_and_presents_the_exported_certificate(application: Application) -> None:
    own, old = (client_context(application.identity) for _ in range(2))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    leaf = read_identity(application.identity)[0].leaf.public_bytes(Encoding.DER)
    for port in (*application.channels, application.pages):
        assert presented(port, own) == leaf
        assert refuses(port, old)


def test_web_pages_demand_a_certificate_of_the_authority(application: Application) -> None:
    assert b"200 OK" in exchange(application.pages, client_context(application.pki.directory(OTHER)), GET)
    for case in (Hostile.NO_CERTIFICATE, Hostile.EDGE_CERTIFICATE, Hostile.FOREIGN_CA, Hostile.EXPIRED):
        hostile = application.pki.hostile(case, pretending=OTHER)
        assert exchange(application.pages, hostile.client_context(), GET) == b"", case


def test_rpc_and_block_transfer_of_stock_spark_request_no_client_certificate(application: Application) -> None:
    """The file's comments name this as a limit of stock Spark; should this fail, they can be shortened."""
    anonymous = application.pki.hostile(Hostile.NO_CERTIFICATE, pretending=OTHER)
    assert let_in(application.channels, anonymous.client_context()) == application.channels
