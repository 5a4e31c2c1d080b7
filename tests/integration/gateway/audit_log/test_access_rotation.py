"""The real Envoy's access log is rotated while requests arrive.

Each request appears in the audit log exactly once.
"""

from __future__ import annotations

import asyncio

from sluice.gateway.audit_log.access_log_reader import access_file
from sluice.gateway.audit_log.access_rotation import AccessRotation
from sluice.gateway.audit_log.log import audit_directory
from sluice.gateway.audit_log.verification import read_records, verify_log
from sluice.gateway.proxy.bootstrap import EnvoyPaths
from sluice.gateway.proxy.envoy_admin import EnvoyAdmin
from tests.integration.gateway.conftest import Gateway, eventually


def test_each_request_is_recorded_exactly_once_while_the_access_log_rotates(gateway: Gateway) -> None:
    path = access_file(gateway.home)
    rotation = AccessRotation(path, EnvoyAdmin(EnvoyPaths.of(gateway.home).admin_socket, 0), max_bytes=1)
    sent: set[str] = set()
    for number in range(30):
        reply = gateway.send("GET", "/v1/overview")
        sent.add(str(reply.headers["x-request-id"]))
        if number % 10 == 9:
            eventually(lambda: path.stat().st_size > 0, "the lines are not written")
            assert asyncio.run(rotation.step())

    def recorded() -> list[str]:
        found = (each.request_id for each in read_records(audit_directory(gateway.home)) if each.event == "traffic")
        return [each for each in found if each in sent]

    gateway.send("GET", "/v1/overview")
    eventually(lambda: len(recorded()) >= len(sent), "not every request is in the audit log")
    assert sorted(recorded()) == sorted(sent)
    eventually(lambda: not list(path.parent.glob("access.jsonl.*")), "what was read is deleted")
    verify_log(audit_directory(gateway.home))
