"""Receipts: their content, and that only an unmodified receipt of a JobManager verifies."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core.egress_evidence import EgressVerdict
from sluice.core.errors import AssertionRefused
from sluice.pki.attestations.audit_proof import AuditProof, ProofOrder, make_proof
from sluice.pki.attestations.certificates import AttestationRejected
from sluice.pki.attestations.dsse import IN_TOTO, MAX_ENVELOPE_BYTES, Envelope, canonical, open_envelope, sign
from sluice.pki.spiffe_id import Role
from sluice.runtime.jobmanager.gateways import EgressConnections
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import JobState
from sluice.runtime.receipts.compose import compose
from sluice.runtime.receipts.document import MAX_DESTINATIONS, MAX_SUBJECTS, Statement, commitment, with_proof
from sluice.runtime.receipts.errors import ReceiptNotRecorded, ReceiptUnavailable
from sluice.runtime.receipts.issuing import LOST_DIGEST, ReceiptIssuer
from sluice.runtime.receipts.verification import VerifiedReceipt, verify_receipt
from tests.receipts import JOB, OUTSIDE, RECORD, STARTED_MS, SUBMISSION, ReceiptWorld, process, row, spiffe


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ReceiptWorld:
    return ReceiptWorld(tmp_path_factory.mktemp("receipts"))


@pytest.fixture(scope="module")
def receipt(world: ReceiptWorld) -> bytes:
    return world.issue()


@pytest.fixture(scope="module")
def disclosed(world: ReceiptWorld) -> bytes:
    return world.issue(disclose=True)


def payload_of(receipt: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(base64.b64decode(json.loads(receipt)["payload"]))
    return document


def with_payload(receipt: bytes, payload: bytes) -> bytes:
    """The same envelope, signature and all, with another payload."""
    document = json.loads(receipt)
    return canonical(document | {"payload": base64.b64encode(payload).decode()})


def statement_of(receipt: bytes) -> Statement:
    return msgspec.json.decode(open_envelope(receipt, IN_TOTO).payload, type=Statement)


# --- what is in it ------------------------------------------------------------------------------------------------


def test_a_receipt_verifies_with_the_anchors_alone(world: ReceiptWorld, receipt: bytes) -> None:
    verified = verify_receipt(receipt, world.anchors)
    assert str(verified.signer) == spiffe("jobmanager/jm-1")
    assert str(verified.proven.witness) == spiffe("auth/auth-1")
    assert len(verified.checks) == 5


def test_a_receipt_says_what_ran_and_who_allowed_it(receipt: bytes) -> None:
    document = payload_of(receipt)
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert {each["name"]: each["digest"]["sha256"] for each in document["subject"]} == {
        "pipeline/etl.py": "1" * 64,
        "file/numbers.csv": "2" * 64,
        "archive/env.tar.gz": "3" * 64,
    }
    submission = document["predicate"]["submission"]
    assert (submission["principal"], submission["roles"], submission["credential"]) == ("ada", ["submitter"], "tok-1")
    assert submission["decision"] == {
        "operation": "jobs.submit",
        "requestId": "req-1",
        "assertionId": "jti-1",
        "policySha256": "9" * 64,
    }
    (driver, _) = document["predicate"]["processes"]["listed"]
    assert (driver["isolation"], driver["egress"], driver["serials"]) == ("sandbox", "enforce", ["ab12"])


def test_connections_that_the_job_reports_are_kept_apart_from_those_the_cluster_saw(receipt: bytes) -> None:
    predicate = payload_of(receipt)["predicate"]
    (seen,) = predicate["connections"]["listed"]
    assert (seen["dialer"], seen["listener"], seen["count"]) == (
        spiffe(f"job/{JOB}/driver"),
        spiffe("jobmanager/jm-1"),
        2,
    )
    (claimed,) = predicate["reportedByJob"]["connections"]["listed"]
    assert claimed["dialer"] == spiffe(f"job/{JOB}/executor/1")
    assert (predicate["reportedByJob"]["inputBytes"], predicate["reportedByJob"]["outputBytes"]) == (100, 7)


def test_egress_connections_are_counted_by_destination_and_verdict(receipt: bytes) -> None:
    egress = payload_of(receipt)["predicate"]["egress"]
    assert egress["complete"]
    assert (egress["allowed"], egress["refused"], egress["wouldBeRefused"]) == (2, 40, 0)
    assert [(each["target"], each["count"], each["bytesUp"]) for each in egress["listed"]] == [
        ("evil.example.com:443", 40, 5),
        ("api.example.com:443", 2, 10),
    ]


def test_a_receipt_contains_no_argument_setting_group_or_secret_name(receipt: bytes) -> None:
    text = base64.b64decode(json.loads(receipt)["payload"])
    for hidden in (b"hunter2", b"conf-hunter3", b"spark.secret", b"prod-database", b"data-team", b"5" * 64):
        assert hidden not in text
    parameters = payload_of(receipt)["predicate"]["submission"]["parameters"]
    assert (parameters["arguments"], parameters["secrets"], parameters["disclosed"]) == (2, 1, None)


def test_disclosed_parameters_match_the_commitment(world: ReceiptWorld, receipt: bytes, disclosed: bytes) -> None:
    verified = verify_receipt(disclosed, world.anchors)
    assert "the disclosed arguments and settings are those of the commitment" in verified.checks
    shown, hidden = (payload_of(each)["predicate"]["submission"]["parameters"] for each in (disclosed, receipt))
    assert shown["commitment"] == hidden["commitment"] == commitment(SUBMISSION.args, SUBMISSION.spark_conf, "5" * 64)
    assert shown["disclosed"]["arguments"] == ["--password", "hunter2"]


@pytest.mark.parametrize(
    ("record", "outside"),
    [
        pytest.param(RECORD, None, id="nobody knows"),
        pytest.param(RECORD, msgspec.structs.replace(OUTSIDE, forgotten=True), id="rows were forgotten"),
        pytest.param(
            RECORD, msgspec.structs.replace(OUTSIDE, since=STARTED_MS / 1000 + 1), id="another leader knew the rest"
        ),
        pytest.param(
            RECORD,
            msgspec.structs.replace(OUTSIDE, rows=(row(1, "h", EgressVerdict.ALLOWED, open=True),)),
            id="one has not ended",
        ),
        pytest.param(msgspec.structs.replace(RECORD, processes=()), OUTSIDE, id="no process is known"),
        pytest.param(msgspec.structs.replace(RECORD, processes_dropped=1), OUTSIDE, id="a process is not known"),
        pytest.param(
            msgspec.structs.replace(
                RECORD, processes=(msgspec.structs.replace(RECORD.processes[0], egress="off"), RECORD.processes[1])
            ),
            OUTSIDE,
            id="a process was free to connect",
        ),
    ],
)
def test_egress_is_not_complete_if_any_connection_may_be_missing(
    world: ReceiptWorld, record: JobRecord, outside: EgressConnections | None
) -> None:
    assert not payload_of(world.issue(record, outside))["predicate"]["egress"]["complete"]


@pytest.mark.parametrize("text", ["x", "\0", "\N{GRINNING FACE}", '"'], ids=["text", "control", "wide", "quoted"])
def test_a_receipt_is_bounded_whatever_a_job_did(world: ReceiptWorld, text: str) -> None:
    record = msgspec.structs.replace(
        RECORD,
        detail=msgspec.structs.replace(RECORD.detail, name="n" * 5000, attempts=RECORD.detail.attempts * 50),
        processes=tuple(process(f"job/{JOB}/executor/{number}") for number in range(300)),
        connections=tuple(
            msgspec.structs.replace(
                RECORD.connections[2],
                **dict.fromkeys(("channel", "local", "peer", "protocol", "cipher"), f"{number}{text}" * 1000),
            )
            for number in range(1000)
        ),
    )
    rows = tuple(row(number, f"h{number}" + text * 240, EgressVerdict.REFUSED) for number in range(1000))
    document = world.issue(record, msgspec.structs.replace(OUTSIDE, rows=rows))
    assert len(document) < MAX_ENVELOPE_BYTES
    predicate = payload_of(document)["predicate"]
    assert len(predicate["egress"]["listed"]) == MAX_DESTINATIONS
    assert predicate["egress"]["leftOut"] == 800
    assert predicate["egress"]["refused"] == 1000
    listed = predicate["reportedByJob"]["connections"]
    assert len(listed["listed"]) + listed["leftOut"] == 1000
    verify_receipt(document, world.anchors)


def test_a_job_that_reports_nonsense_does_not_prevent_its_receipt(world: ReceiptWorld) -> None:
    record = msgspec.structs.replace(
        RECORD,
        connections=(msgspec.structs.replace(RECORD.connections[2], opened_at=1e300),),
        stages=msgspec.structs.replace(
            RECORD.stages,
            stages=(msgspec.structs.replace(RECORD.stages.stages[0], input_bytes=1 << 62, output_bytes=-5),),
        ),
    )
    verify_receipt(world.issue(record), world.anchors)


def test_connections_that_a_job_forges_are_listed_only_as_reported_by_the_job(world: ReceiptWorld) -> None:
    """The job can write to the files in which the evidence of its own processes lies."""
    forged = msgspec.structs.replace(
        RECORD.connections[0], peer=spiffe(f"job/{'b' * 32}/driver"), opened_at=STARTED_MS * 10.0
    )
    predicate = payload_of(world.issue(msgspec.structs.replace(RECORD, connections=(forged,) * 1000)))["predicate"]
    (seen,) = predicate["connections"]["listed"]
    assert seen["dialer"] == spiffe(f"job/{JOB}/driver")
    (claimed,) = predicate["reportedByJob"]["connections"]["listed"]
    assert claimed["dialer"] == spiffe(f"job/{'b' * 32}/driver")


def test_an_executor_without_a_known_box_is_not_called_isolated(world: ReceiptWorld) -> None:
    unknown = msgspec.structs.replace(RECORD.processes[0], isolation="", egress="")
    record = msgspec.structs.replace(RECORD, processes=(unknown,))
    (listed,) = payload_of(world.issue(record))["predicate"]["processes"]["listed"]
    assert listed["isolation"] == ""


@pytest.mark.parametrize(
    ("record", "why"),
    [
        pytest.param(
            msgspec.structs.replace(RECORD, detail=msgspec.structs.replace(RECORD.detail, state=JobState.RUNNING)),
            "is RUNNING",
            id="it runs",
        ),
        pytest.param(
            msgspec.structs.replace(
                RECORD,
                submission=msgspec.structs.replace(
                    SUBMISSION, pipeline=msgspec.structs.replace(SUBMISSION.pipeline, sha256=LOST_DIGEST)
                ),
            ),
            "is not known any more",
            id="its record was damaged",
        ),
    ],
)
def test_a_running_job_or_one_with_a_damaged_record_gets_no_receipt(
    world: ReceiptWorld, record: JobRecord, why: str
) -> None:
    before = world.log.state.count
    with pytest.raises(ReceiptUnavailable, match=why):
        world.issue(record)
    assert world.log.state.count == before, "and nothing is recorded"


def test_a_job_with_very_many_files_has_a_receipt_too(world: ReceiptWorld) -> None:
    many = msgspec.structs.replace(SUBMISSION, files=SUBMISSION.files * 1200)
    document = world.issue(msgspec.structs.replace(RECORD, submission=many))
    verify_receipt(document, world.anchors)
    subjects = payload_of(document)["subject"]
    assert (len(subjects), subjects[-1]["name"]) == (MAX_SUBJECTS, "digests of 203 further files")


def test_a_receipt_that_cannot_be_recorded_is_not_issued(world: ReceiptWorld) -> None:
    async def away(order: ProofOrder, by: str) -> AuditProof:
        raise AssertionRefused(f"no answer about {order.job} for {by}")

    with pytest.raises(ReceiptNotRecorded, match="no answer about"):
        asyncio.run(ReceiptIssuer(world.jobmanager, away).issue(RECORD, OUTSIDE, principal="ada", disclose=False))


def test_a_receipt_that_was_recorded_with_another_digest_is_not_issued(world: ReceiptWorld) -> None:
    async def lying(order: ProofOrder, by: str) -> AuditProof:
        return await world.prove(msgspec.structs.replace(order, sha256="0" * 64), by)

    with pytest.raises(ReceiptNotRecorded, match="something else"):
        asyncio.run(ReceiptIssuer(world.jobmanager, lying).issue(RECORD, OUTSIDE, principal="ada", disclose=False))


def test_a_receipt_of_an_older_submission_says_that_the_decision_is_not_recorded(world: ReceiptWorld) -> None:
    old = msgspec.structs.replace(RECORD, submission=msgspec.structs.replace(SUBMISSION, admission=None, salt=""))
    document = world.issue(old)
    verify_receipt(document, world.anchors)
    predicate = payload_of(document)["predicate"]
    assert predicate["submission"]["decision"] is None
    assert any("decision" in each for each in predicate["notRecorded"])


# --- what verification refuses ------------------------------------------------------------------------------------


def altered(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each variant of ``value`` with one leaf changed, added or removed, and the changed path."""
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from ((where, value | {name: changed}) for where, changed in altered(inside, f"{path}.{name}"))
            yield f"{path} without {name}", {key: each for key, each in value.items() if key != name}
        yield f"{path} with more", value | {"zzz": 1}
    elif isinstance(value, list):
        for index, inside in enumerate(value):
            for where, changed in altered(inside, f"{path}[{index}]"):
                yield where, [*value[:index], changed, *value[index + 1 :]]
        yield f"{path} longer", [*value, *(value[-1:] or ["x"])]
        yield from [(f"{path} shorter", value[:-1])] if value else []
    else:
        yield from ((path, changed) for changed in _altered_leaf(value))


def _altered_leaf(value: Any) -> list[Any]:
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1]
        case str():
            return [value + "0", *([("1" if value[0] == "0" else "0") + value[1:]] if value else [])]
        case _:
            return ["x"]


def accepted(document: bytes, world: ReceiptWorld) -> bool:
    try:
        verify_receipt(document, world.anchors)
    except AttestationRejected:
        return False
    return True


def test_every_altered_field_of_the_statement_is_noticed(world: ReceiptWorld, disclosed: bytes) -> None:
    changes = list(altered(payload_of(disclosed)))
    assert len(changes) > 200
    for where, changed in changes:
        assert not accepted(with_payload(disclosed, canonical(changed)), world), where


def test_every_altered_field_of_the_envelope_is_noticed(world: ReceiptWorld, receipt: bytes) -> None:
    for where, changed in altered(json.loads(receipt)):
        # Whoever trusts the internal authority itself needs no certificate of it.
        harmless = where == ".signatures[0].extension.ext.certificates shorter"
        assert accepted(canonical(changed), world) is harmless, where


def test_an_altered_statement_that_its_jobmanager_signs_again_is_rejected(
    world: ReceiptWorld, disclosed: bytes
) -> None:
    """The audit log's record binds the content, whoever signs it."""
    proof = payload_of(disclosed)["predicate"]["auditLog"]
    changes = [
        (where, changed)
        for where, changed in altered(payload_of(disclosed))
        if changed.get("predicate", {}).get("auditLog") == proof
    ]
    assert len(changes) > 150
    for where, changed in changes:
        document = canonical(sign(canonical(changed), IN_TOTO, world.jobmanager.material))
        assert not accepted(document, world), where


SIGNERS = [role for role in Role if role not in {Role.JOBMANAGER, Role.USER}]


@pytest.mark.parametrize("role", SIGNERS)
def test_no_role_but_the_jobmanager_can_sign_a_receipt(world: ReceiptWorld, role: Role) -> None:
    name = {Role.DRIVER: "", Role.EXECUTOR: "1"}.get(role, "x-1")
    document = world.issue(signer=world.identity(role, name))
    with pytest.raises(AttestationRejected, match="may not sign this"):
        verify_receipt(document, world.anchors)


@pytest.mark.parametrize("role", [role for role in SIGNERS if role is not Role.AUTH] + [Role.JOBMANAGER])
def test_no_role_but_the_auth_service_can_sign_the_audit_log_checkpoint(
    world: ReceiptWorld, receipt: bytes, role: Role
) -> None:
    name = {Role.DRIVER: "", Role.EXECUTOR: "1"}.get(role, "y-1")
    statement = statement_of(receipt)
    genuine = statement.predicate.audit_log
    assert genuine is not None
    forged = make_proof(genuine.record.encode(), genuine.checkpoint.encode(), world.identity(role, name).material)
    document = canonical(sign(canonical(with_proof(statement, forged)), IN_TOTO, world.jobmanager.material))
    with pytest.raises(AttestationRejected, match=r"the audit log's checkpoint: .*may not sign this"):
        verify_receipt(document, world.anchors)


def test_another_jobmanager_cannot_sign_a_receipt_as_its_own(world: ReceiptWorld, receipt: bytes) -> None:
    other = world.identity(Role.JOBMANAGER, "jm-2")
    document = canonical(sign(open_envelope(receipt, IN_TOTO).payload, IN_TOTO, other.material))
    with pytest.raises(AttestationRejected, match="its by is not"):
        verify_receipt(document, world.anchors)


def test_an_audit_log_proof_of_another_receipt_is_rejected(
    world: ReceiptWorld, receipt: bytes, disclosed: bytes
) -> None:
    statement = with_proof(statement_of(receipt), statement_of(disclosed).predicate.audit_log)
    document = canonical(sign(canonical(statement), IN_TOTO, world.jobmanager.material))
    with pytest.raises(AttestationRejected, match="is of another receipt"):
        verify_receipt(document, world.anchors)


def test_a_receipt_without_an_audit_log_proof_is_rejected(world: ReceiptWorld, receipt: bytes) -> None:
    bare = with_proof(statement_of(receipt), None)
    document = canonical(sign(canonical(bare), IN_TOTO, world.jobmanager.material))
    with pytest.raises(AttestationRejected, match="no proof from the audit log"):
        verify_receipt(document, world.anchors)


def test_a_receipt_verifies_after_its_certificates_have_expired(tmp_path: Path) -> None:
    past = ReceiptWorld(tmp_path, now=dt.datetime.now(dt.UTC) - dt.timedelta(days=60))
    verified = verify_receipt(past.issue(), past.anchors)
    assert verified.expires_at < dt.datetime.now(dt.UTC)


def recorded_at(world: ReceiptWorld, now: dt.datetime, auth: str) -> bytes:
    """Return a receipt signed with the JobManager's current key and recorded in the log at ``now``."""
    statement = compose(RECORD, OUTSIDE, issued_by=world.jobmanager.spiffe_id, now=now, disclose=False)
    signer, before = world.jobmanager.material, world.now
    world.now = now
    try:
        world.auth = world.identity(Role.AUTH, auth)
        order = ProofOrder(JOB, "ada", statement.digest())
        proof = asyncio.run(world.prove(order, str(signer.spiffe_id)))
    finally:
        world.now = before
    return canonical(sign(canonical(with_proof(statement, proof)), IN_TOTO, signer))


def test_a_receipt_recorded_after_its_signer_certificate_expired_is_rejected(tmp_path: Path) -> None:
    """The time of the audit log counts, which a thief of the signer's key cannot choose."""
    world = ReceiptWorld(tmp_path)
    document = recorded_at(world, world.now + dt.timedelta(days=60), "auth-2")
    with pytest.raises(AttestationRejected, match=r"the signer is not trusted: .* expired at"):
        verify_receipt(document, world.anchors)


def test_a_receipt_recorded_before_its_signer_certificate_was_valid_is_rejected(tmp_path: Path) -> None:
    world = ReceiptWorld(tmp_path, now=dt.datetime.now(dt.UTC) - dt.timedelta(days=60))
    later = world.now + dt.timedelta(days=30)
    world.now, earlier = later, world.now
    world.jobmanager = world.identity(Role.JOBMANAGER, "jm-1")
    world.now = earlier
    document = recorded_at(world, earlier, "auth-2")
    with pytest.raises(AttestationRejected, match=r"the signer is not trusted: .* is not valid before"):
        verify_receipt(document, world.anchors)


def test_the_times_of_signer_and_audit_log_must_agree(world: ReceiptWorld) -> None:
    early = world.now - dt.timedelta(minutes=6)
    signer = world.jobmanager
    statement = compose(RECORD, OUTSIDE, issued_by=signer.spiffe_id, now=early, disclose=False)
    proof = asyncio.run(world.prove(ProofOrder(JOB, "ada", statement.digest()), str(signer.spiffe_id)))
    document = canonical(sign(canonical(with_proof(statement, proof)), IN_TOTO, signer.material))
    with pytest.raises(AttestationRejected, match="at another time"):
        verify_receipt(document, world.anchors)


def test_a_receipt_of_another_authority_is_refused(tmp_path: Path, world: ReceiptWorld) -> None:
    stranger = ReceiptWorld(tmp_path)
    with pytest.raises(AttestationRejected, match="no path to a trust anchor"):
        verify_receipt(stranger.issue(), world.anchors)


def test_a_receipt_of_another_trust_domain_is_refused(tmp_path: Path) -> None:
    other = ReceiptWorld(tmp_path, trust_domain="other.example")
    record = msgspec.structs.replace(
        RECORD,
        processes=tuple(
            msgspec.structs.replace(each, identity=each.identity.replace("sluice.local", "other.example"))
            for each in RECORD.processes
        ),
    )
    document = other.issue(record)
    verify_receipt(document, other.anchors, trust_domain="other.example")
    with pytest.raises(AttestationRejected, match=r"of trust domain other.example, not of sluice.local"):
        verify_receipt(document, other.anchors, trust_domain="sluice.local")
    with pytest.raises(AttestationRejected, match="is not of the receipt's job"):
        verify_receipt(other.issue(), other.anchors)


@pytest.mark.parametrize(
    "identity", [spiffe(f"job/{'b' * 32}/driver"), spiffe("jobmanager/jm-1"), "spiffe://", "x"], ids=lambda text: text
)
def test_a_receipt_with_a_process_that_is_not_of_its_job_is_refused(world: ReceiptWorld, identity: str) -> None:
    strange = msgspec.structs.replace(RECORD.processes[0], identity=identity)
    document = world.issue(msgspec.structs.replace(RECORD, processes=(strange,)))
    with pytest.raises(AttestationRejected, match="process"):
        verify_receipt(document, world.anchors)


def test_a_receipt_does_not_verify_without_any_trust_anchor(receipt: bytes) -> None:
    with pytest.raises(AttestationRejected):
        verify_receipt(receipt, ())


def duplicated_in_payload(receipt: bytes) -> bytes:
    payload = base64.b64decode(json.loads(receipt)["payload"])
    return with_payload(receipt, payload.replace(b'"name":"nightly"', b'"name":"other","name":"nightly"'))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(
            lambda each: each.replace(b'"payloadType":', b'"payloadType":"x","payloadType":'),
            "not in its canonical form",
            id="a field twice in the envelope",
        ),
        pytest.param(duplicated_in_payload, "not in its canonical form", id="a field twice in the statement"),
        pytest.param(lambda each: json.dumps(json.loads(each), indent=1).encode(), "canonical", id="written anew"),
        pytest.param(lambda each: each + b"\n", "canonical", id="something after it"),
        pytest.param(lambda each: each[:-40], "is malformed", id="cut off"),
        pytest.param(lambda _: b"", "is malformed", id="empty"),
        pytest.param(lambda _: b"\xff\xfe", "is malformed", id="no text"),
        pytest.param(lambda _: b"[" * 100_000, "is malformed", id="nested too deeply"),
        pytest.param(lambda _: b" " * (MAX_ENVELOPE_BYTES + 1), "larger than", id="huge"),
        pytest.param(
            lambda each: canonical(json.loads(each) | {"payload": "A" * 6_000_000}), "more than", id="huge payload"
        ),
        pytest.param(
            lambda each: canonical(json.loads(each) | {"signatures": json.loads(each)["signatures"] * 2}),
            "2 signatures",
            id="two signatures",
        ),
        pytest.param(lambda each: canonical(json.loads(each) | {"signatures": []}), "0 signatures", id="no signature"),
        pytest.param(
            lambda each: each.replace(b"application/vnd.in-toto+json", b"application/vnd.other+json"),
            "not application/vnd.in-toto",
            id="another type",
        ),
    ],
)
def test_anything_but_one_whole_canonical_document_is_refused(
    world: ReceiptWorld, receipt: bytes, change: Callable[[bytes], bytes], why: str
) -> None:
    with pytest.raises(AttestationRejected, match=why):
        verify_receipt(change(receipt), world.anchors)


def test_a_receipt_with_a_replaced_certificate_is_refused(world: ReceiptWorld, receipt: bytes) -> None:
    document = json.loads(receipt)
    other = world.identity(Role.JOBMANAGER, "jm-3").material.leaf.public_bytes(Encoding.DER)
    chain = document["signatures"][0]["extension"]["ext"]["certificates"]
    chain[0] = base64.b64encode(other).decode()
    with pytest.raises(AttestationRejected, match="names another key"):
        verify_receipt(canonical(document), world.anchors)


def test_verification_fails_for_files_that_are_not_among_those_the_job_ran(world: ReceiptWorld, receipt: bytes) -> None:
    verified: VerifiedReceipt = verify_receipt(receipt, world.anchors, files=[("etl.py", "1" * 64)])
    assert verified.checks[-1] == "etl.py is what the job ran as pipeline/etl.py"
    with pytest.raises(AttestationRejected, match="not among what the job ran"):
        verify_receipt(receipt, world.anchors, files=[("etl.py", "4" * 64)])


def test_the_key_of_the_audit_log_can_be_pinned(world: ReceiptWorld, receipt: bytes) -> None:
    key = verify_receipt(receipt, world.anchors).proven.key
    assert verify_receipt(receipt, world.anchors, audit_key=key).checks[-1] == f"the audit log's key is {key}"
    with pytest.raises(AttestationRejected, match="not of 0"):
        verify_receipt(receipt, world.anchors, audit_key="0" * 32)


def test_the_rest_answer_is_canonical_when_its_keys_are_sorted(receipt: bytes) -> None:
    envelope = msgspec.json.decode(receipt, type=Envelope)
    assert canonical(msgspec.json.decode(msgspec.json.encode(envelope))) + b"\n" == receipt


def test_equal_parameters_of_two_jobs_have_different_commitments() -> None:
    assert commitment(("a",), {}, "11") != commitment(("a",), {}, "22")
    assert commitment(("a", "b"), {}, "11") != commitment(("ab",), {}, "11")
    assert commitment((), {}, "") == ""
