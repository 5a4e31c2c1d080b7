"""Which peers stock Spark talks to, configured with `sluice pki export --for spark`.

A test with a job is in tests/programs.
"""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.pki.export.programs.catalogue import Program, export_for
from tests.hostile import Hostile, TestPki
from tests.integration.programs.ports import Listener, tail, until
from tests.integration.programs.spark_application import OTHER, SPARK, started


@pytest.mark.spark
def test_spark_as_a_client_speaks_with_servers_of_the_authority_only(tmp_path: Path) -> None:
    """A driver that tries three masters, of which only one has a certificate of the authority."""
    pki = TestPki(tmp_path / "pki")
    export_for(Program.SPARK, pki.directory(SPARK), tmp_path / "conf", now=utc_now())
    with (tmp_path / "conf" / "spark-defaults.conf").open("a") as file:
        file.write("spark.authenticate.secret of-this-test\nspark.ui.enabled false\n")
    honest = pki.directory(OTHER)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(honest / "chain.pem", honest / "key.pem")
    with contextlib.ExitStack() as stack:
        good = stack.enter_context(Listener(context))
        bad = [
            stack.enter_context(Listener(pki.hostile(case, pretending=OTHER).server_context()))
            for case in (Hostile.EDGE_CERTIFICATE, Hostile.FOREIGN_CA)
        ]
        masters = ",".join(f"localhost:{each.port}" for each in (*bad, good))
        stack.enter_context(started(tmp_path, f"spark://{masters}"))
        until(lambda: good.accepted and all(each.refused for each in bad), lambda: tail(tmp_path / "log"))
        assert [each.accepted for each in bad] == [0, 0]
