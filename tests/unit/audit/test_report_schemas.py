"""Reports validated against the schemas of their readers: the official SARIF schema and our own."""

from __future__ import annotations

import copy
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft4Validator, Draft202012Validator, FormatChecker
from jsonschema.protocols import Validator

from sluice.audit.catalogue import CHECKS
from sluice.audit.insider import CHECKS as INSIDE
from sluice.audit.model import (
    Accepted,
    CertificateFacts,
    Kind,
    Listener,
    ListenerReport,
    Negotiated,
    Outcome,
    Report,
    Result,
    Severity,
)
from sluice.audit.reports import RENDERERS, Format, json_schema
from sluice.pki.channels import Channel

SARIF_SCHEMA = Path(__file__).parents[2] / "schemas" / "sarif-2.1.0-rtm.5.json"
NOW = dt.datetime(2026, 11, 21, 8, 30, tzinfo=dt.UTC)
ACCEPTED = Accepted("ticket 4711", dt.date(2027, 3, 31))
OUTCOMES = tuple(Outcome)


def result(number: int) -> Result:
    """A result of the check with this number.

    Over all numbers, every outcome and every kind of place occurs, and some results are accepted.
    """
    check = CHECKS[number]
    places = ("127.0.0.1:8443", "[::1]:8443", "/srv/cluster home/run/sock/rest.sock", "spark.example:7077")
    return Result(
        check=check.id,
        title=check.title,
        listener=f"listener {number % 5}",
        place=places[number % len(places)],
        severity=check.severity,
        outcome=OUTCOMES[number % len(OUTCOMES)],
        done='sent "<&>" \x00\x1b[31m',
        expected=check.expected,
        references=check.references,
        seen="seen \u2028 ü",
        remedy=check.remedy,
        seconds=0.25,
        accepted=ACCEPTED if number % 4 == 0 else None,
    )


CERTIFICATE = CertificateFacts(
    subject="CN=a",
    issuer="CN=b",
    key="ECDSA P-256",
    signature="ecdsa-with-SHA256",
    not_before=NOW,
    not_after=NOW,
    spiffe_ids=("spiffe://sluice.local/jobmanager/a",),
    sha256="00",
)
NEGOTIATED = Negotiated(
    version="TLS 1.3",
    suite="TLS_AES_128_GCM_SHA256",
    group="x25519",
    post_quantum_groups=("X25519MLKEM768",),
    groups=("x25519",),
    suites=("TLS_AES_128_GCM_SHA256",),
    alpn="h2",
    signature="ecdsa_secp256r1_sha256",
    client_certificate_requested=True,
    stapled=False,
    chain=(CERTIFICATE,),
)
FULL = Report(
    subject="a cluster",
    started_at=NOW,
    seconds=12.5,
    listeners=(
        ListenerReport(
            listener=Listener(name="rpc", kind=Kind.MUTUAL, channel=Channel.RPC, host="::1", port=1, bound=("::1",)),
            negotiated=NEGOTIATED,
        ),
        *(ListenerReport(listener=Listener(name=kind, kind=kind)) for kind in Kind),
    ),
    results=tuple(result(number) for number in range(len(CHECKS))),
)
EMPTY = msgspec.structs.replace(FULL, listeners=(), results=())


def sarif() -> Validator:
    """A validator for the official SARIF schema."""
    schema = json.loads(SARIF_SCHEMA.read_text(encoding="utf-8"))
    Draft4Validator.check_schema(schema)
    return Draft4Validator(schema, format_checker=FormatChecker())


def own() -> Validator:
    """A validator for our own schema, which ``sluice audit --schema`` prints."""
    schema = json.loads(json_schema())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema, format_checker=FormatChecker())


@pytest.mark.parametrize("report", [FULL, EMPTY], ids=["everything", "nothing"])
@pytest.mark.parametrize(("format_", "schema"), [(Format.SARIF, sarif), (Format.JSON, own)], ids=["sarif", "json"])
def test_a_report_matches_its_schema(format_: Format, schema: Callable[[], Validator], report: Report) -> None:
    document = json.loads(RENDERERS[format_](report))
    assert [f"{error.json_path}: {error.message[:200]}" for error in schema().iter_errors(document)] == []


def _no_version(document: Any) -> None:
    del document["version"]


def _unknown_level(document: Any) -> None:
    document["runs"][0]["results"][0]["level"] = "terrible"


def _place_with_spaces(document: Any) -> None:
    location = document["runs"][0]["results"][0]["locations"][0]
    location["physicalLocation"]["artifactLocation"]["uri"] = 7


@pytest.mark.parametrize("spoil", [_no_version, _unknown_level, _place_with_spaces])
def test_the_official_sarif_schema_refuses_a_spoiled_report(spoil: Callable[[Any], None]) -> None:
    document = copy.deepcopy(json.loads(RENDERERS[Format.SARIF](FULL)))
    spoil(document)
    assert list(sarif().iter_errors(document))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda document: document.pop("results"), id="no results"),
        pytest.param(lambda document: document["results"][0].update(severity="awful"), id="unknown severity"),
        pytest.param(lambda document: document["results"][0].update(outcome="fine"), id="unknown outcome"),
        pytest.param(lambda document: document["listeners"][0].update(listener=None), id="no listener"),
    ],
)
def test_our_own_schema_refuses_a_spoiled_report(change: Callable[[Any], object]) -> None:
    document = json.loads(RENDERERS[Format.JSON](FULL))
    change(document)
    assert list(own().iter_errors(document))


def test_every_finding_is_in_the_sarif_report_with_its_rule_and_severity() -> None:
    (run,) = json.loads(RENDERERS[Format.SARIF](FULL))["runs"]
    findings = [each for each in FULL.results if each.outcome is Outcome.FINDING]
    assert [each["ruleId"] for each in run["results"]] == [each.check for each in findings]
    rules = run["tool"]["driver"]["rules"]
    assert all(rules[each["ruleIndex"]]["id"] == each["ruleId"] for each in run["results"])
    assert len({rule["id"] for rule in rules}) == len(rules) == len(CHECKS) + len(INSIDE)
    suppressed = [bool(each.get("suppressions")) for each in run["results"]]
    assert suppressed == [each.accepted is not None for each in findings]
    assert {rule["defaultConfiguration"]["level"] for rule in rules} <= {"error", "warning", "note"}
    assert Severity.CRITICAL in {each.severity for each in findings}
