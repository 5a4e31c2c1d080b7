"""Decisions about CONNECT requests of jobs, and the answers to Envoy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
from grpclib.const import Status

from sluice.core.egress import EgressSetting
from sluice.core.grpc.server import CallRefused
from sluice.core.xds.messages import TYPE_PREFIX, decode, encode, from_json, to_json
from sluice.gateway.audit_log.log import AuditLog
from sluice.gateway.audit_log.writer import AuditWriter
from sluice.gateway.authz.egress import EgressSubject
from sluice.gateway.authz.policy import Policy
from sluice.gateway.authz.policy_file import parse
from sluice.gateway.egress.authorization import read_check, write_answer
from sluice.gateway.egress.checks import EgressAnswer, EgressChecks, EgressRequest
from sluice.gateway.egress.job_owners import KEPT_SECONDS, JobOwners, JobUnknown
from sluice.gateway.egress.resolver import NameUnresolved
from sluice.pki.config import PkiConfig
from sluice.pki.spiffe_id import SpiffeId
from tests.hostile import Hostile, TestPki

JOB = "0" * 32
DRIVER = f"spiffe://egress.test/job/{JOB}/driver"
POLICY = """
version = 1
[roles.submitter]
allow = []
[[egress]]
to = ["api.test:443", "db.test:5432", "10.0.0.7:80"]
users = ["ada"]
[[egress]]
to = ["first.test:3306"]
users = ["ada"]
protocol = "tcp"
"""


@dataclass
class Names:
    """A resolver that records the names it was asked for."""

    known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def addresses(self, name: str) -> tuple[str, ...]:
        self.asked.append(name)
        if name not in self.known:
            raise NameUnresolved(f"{name} is not resolved: not found")
        return self.known[name]


def policy() -> Policy:
    return parse(POLICY.encode(), frozenset())


@dataclass
class Asked:
    checks: EgressChecks
    names: Names
    log: AuditLog

    async def connect(self, authority: str, peer: str = DRIVER, method: str = "CONNECT") -> EgressAnswer:
        return await self.checks.check(EgressRequest(method, authority, peer))


@pytest.fixture(params=[EgressSetting.ENFORCE])
async def asked(request: pytest.FixtureRequest, tmp_path: Path) -> Asked:
    async def ask(job_id: str) -> EgressSubject:
        if job_id != JOB:
            raise JobUnknown("no such job")
        return EgressSubject(job_id, "nightly", "ada")

    log, names = AuditLog(tmp_path / "audit.jsonl"), Names()
    checks = EgressChecks(policy, JobOwners(ask), names, AuditWriter(log), "egress.test", request.param)
    return Asked(checks, names, log)


async def test_an_allowed_name_is_answered_with_its_admitted_address(asked: Asked) -> None:
    asked.names.known["api.test"] = ("169.254.169.254", "93.184.216.34")
    answer = await asked.connect("API.test:443")
    assert (answer.allowed, answer.listener) == (True, "tls")
    assert answer.facts == {
        "address": "93.184.216.34:443",
        "authority": "api.test:443",
        "host": "api.test",
        "sni": "api.test",
        "rule": "egress[1]",
        "job": JOB,
        "owner": "ada",
        "process": "driver",
    }


@pytest.mark.parametrize(("authority", "inside"), [("db.test:5432", "auto"), ("first.test:3306", "tcp")])
async def test_the_listener_follows_from_port_and_protocol_of_the_rule(
    asked: Asked, authority: str, inside: str
) -> None:
    asked.names.known |= {"db.test": ("10.1.1.1",), "first.test": ("2606:2800::1",)}
    answer = await asked.connect(authority)
    assert (answer.allowed, answer.listener) == (True, inside)


async def test_an_address_needs_no_resolver(asked: Asked) -> None:
    answer = await asked.connect("[::ffff:10.0.0.7]:80")
    assert (answer.facts["address"], answer.facts["sni"], answer.facts["host"]) == ("10.0.0.7:80", "", "10.0.0.7")
    assert asked.names.asked == []


@pytest.mark.parametrize(
    ("authority", "status"),
    [
        ("evil.test:443", 403),
        ("api.test:80", 403),
        ("0x7f.1:443", 400),
        ("api.test", 400),
        ("", 400),
        ("api.test:443", 502),
    ],
)
async def test_a_refused_connect_request_has_its_status_and_no_address(
    asked: Asked, authority: str, status: int
) -> None:
    answer = await asked.connect(authority)
    assert (answer.allowed, answer.status, answer.listener) == (False, status, "")
    assert asked.names.asked == (["api.test"] if status == 502 else [])
    assert "address" not in answer.facts


async def test_a_name_that_resolves_only_to_special_addresses_is_refused(asked: Asked) -> None:
    asked.names.known["api.test"] = ("127.0.0.1", "::ffff:169.254.169.254")
    answer = await asked.connect("api.test:443")
    assert (answer.status, "but not at 127.0.0.1" in answer.reason) == (403, True)


@pytest.mark.parametrize(
    "peer",
    [
        "",
        "spiffe://egress.test/taskmanager/tm-1",
        "spiffe://egress.test/user/ada",
        f"spiffe://elsewhere.test/job/{JOB}/driver",
        f"spiffe://egress.test/job/{JOB}/driver/x",
        f"spiffe://egress.test/job/{'1' * 32}/driver",
    ],
)
async def test_a_peer_other_than_a_known_job_is_refused(asked: Asked, peer: str) -> None:
    asked.names.known["api.test"] = ("93.184.216.34",)
    assert (await asked.connect("api.test:443", peer)).status == 403


async def test_methods_other_than_connect_are_refused(asked: Asked) -> None:
    asked.names.known["api.test"] = ("93.184.216.34",)
    assert (await asked.connect("api.test:443", method="GET")).status == 405


@pytest.mark.parametrize("asked", [EgressSetting.AUDIT], indirect=True)
async def test_audit_mode_refuses_only_impossible_requests(asked: Asked) -> None:
    asked.names.known["any.test"] = ("127.0.0.1",)
    answer = await asked.connect("any.test:443")
    assert (answer.allowed, answer.listener, answer.facts["address"]) == (True, "auto", "127.0.0.1:443")
    assert answer.reason == "audit: would be refused: no rule allows it"
    assert (await asked.connect("0x7f.1:443")).status == 400
    assert (await asked.connect("gone.test:443")).status == 502


async def test_the_owner_of_a_job_is_cached_for_a_while() -> None:
    now, questions = 0.0, []

    async def ask(job_id: str) -> EgressSubject:
        questions.append(job_id)
        return EgressSubject(job_id, "nightly", "ada")

    owners = JobOwners(ask, monotonic=lambda: now)
    await owners.find(JOB)
    await owners.find(JOB)
    assert questions == [JOB]
    now = KEPT_SECONDS
    await owners.find(JOB)
    assert questions == [JOB, JOB]


async def test_a_failed_owner_lookup_is_not_cached() -> None:
    away = iter([True, False])

    async def ask(job_id: str) -> EgressSubject:
        if next(away):
            raise JobUnknown("REST is away")
        return EgressSubject(job_id, "nightly", "ada")

    owners = JobOwners(ask)
    with pytest.raises(JobUnknown):
        await owners.find(JOB)
    assert (await owners.find(JOB)).owner == "ada"


def _question(chain: Path) -> bytes:
    leaf = chain.read_text().partition("-----END CERTIFICATE-----")
    source = {
        "principal": DRIVER,
        "certificate": quote(leaf[0] + leaf[1]),
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}},
    }
    http = {"method": "CONNECT", "host": "api.test:443", "headers": {"x-request-id": "r"}}
    attributes = {"source": source, "request": {"http": http}}
    return encode(from_json(TYPE_PREFIX + "envoy.service.auth.v3.CheckRequest", {"attributes": attributes}))


def test_a_check_request_of_envoy_is_read_and_hostile_certificates_are_refused(tmp_path: Path) -> None:
    driver = SpiffeId.parse(DRIVER)
    pki = TestPki(tmp_path, PkiConfig(trust_domain=driver.trust_domain))
    asked = read_check(_question(pki.directory(driver) / "chain.pem"))
    assert asked == EgressRequest("CONNECT", "api.test:443", DRIVER, "r", "127.0.0.1")
    for case in (Hostile.TWO_SPIFFE_IDS, Hostile.NO_SPIFFE_ID, Hostile.AUTHORITY_AS_LEAF, Hostile.WRONG_EKU):
        with pytest.raises(CallRefused) as refused:
            read_check(_question(pki.hostile(case, pretending=driver).directory / "chain.pem"))
        assert refused.value.status is Status.PERMISSION_DENIED, case
    with pytest.raises(CallRefused) as refused:
        read_check(b"\xff")
    assert refused.value.status is Status.INVALID_ARGUMENT


def test_a_check_answer_for_envoy_has_headers_metadata_or_a_denial() -> None:
    response = TYPE_PREFIX + "envoy.service.auth.v3.CheckResponse"
    told = to_json(decode(response, write_answer(EgressAnswer(200, "fine", "tls", {"address": "1.2.3.4:5"}))))
    assert told["ok_response"]["headers"][0]["header"] == {"key": "x-sluice-egress", "value": "tls"}
    assert told["dynamic_metadata"] == {"address": "1.2.3.4:5"}
    told = to_json(decode(response, write_answer(EgressAnswer(403, "no rule allows it"))))
    assert told["status"]["code"] == 7
    assert told["denied_response"]["body"] == "no rule allows it\n"
    assert "ok_response" not in told
