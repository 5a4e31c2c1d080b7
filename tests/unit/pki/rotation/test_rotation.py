"""The phases of a rotation as tables: which verb is allowed when, and what holds a rotation up."""

from __future__ import annotations

import datetime as dt

import pytest

from sluice.pki.authorities.rotation_phases import (
    Generations,
    Keep,
    Phase,
    Rotation,
    RotationRefused,
    Source,
    TrustHolder,
    Verb,
    check_verb,
    lacking,
    left_out,
    phase_of,
    presenting,
    trusting,
    unknown_names,
)
from sluice.pki.x509.profiles import AuthorityKind

A, B, EDGE, STRANGER = "aa", "bb", "ee", "ff"
SIDE = Generations(old=A, new=B)
INTERNAL, ROOT = AuthorityKind.INTERNAL, AuthorityKind.ROOT
NOW = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
ROTATION = Rotation(subject=INTERNAL, generations={INTERNAL: SIDE}, started_at=NOW)


@pytest.mark.parametrize(
    ("rotation", "signing", "phase"),
    [
        pytest.param(None, {}, Phase.STEADY, id="none"),
        pytest.param(ROTATION, {INTERNAL: A}, Phase.PREPARED, id="old signs"),
        pytest.param(ROTATION, {INTERNAL: B}, Phase.ACTIVE, id="new signs"),
        pytest.param(
            Rotation(subject=ROOT, generations={ROOT: SIDE, INTERNAL: SIDE, AuthorityKind.EDGE: SIDE}, started_at=NOW),
            {ROOT: B, INTERNAL: B, AuthorityKind.EDGE: A},
            Phase.PREPARED,
            id="crashed in the middle of activation: to be repeated",
        ),
        pytest.param(
            Rotation(subject=INTERNAL, generations={INTERNAL: SIDE}, started_at=NOW, keep=Keep.NEW),
            {INTERNAL: B},
            Phase.FINISHING,
            id="finishing",
        ),
        pytest.param(
            Rotation(subject=INTERNAL, generations={INTERNAL: SIDE}, started_at=NOW, keep=Keep.OLD),
            {INTERNAL: A},
            Phase.ABORTING,
            id="aborting",
        ),
    ],
)
def test_the_phase_follows_from_the_recorded_rotation_and_the_signing_authority(
    rotation: Rotation | None, signing: dict[AuthorityKind, str], phase: Phase
) -> None:
    assert phase_of(rotation, signing) is phase


ALLOWED = {
    (Verb.PREPARE, Phase.STEADY),
    (Verb.PREPARE, Phase.PREPARED),
    (Verb.ACTIVATE, Phase.PREPARED),
    (Verb.ACTIVATE, Phase.ACTIVE),
    (Verb.FINISH, Phase.ACTIVE),
    (Verb.FINISH, Phase.FINISHING),
    (Verb.ABORT, Phase.PREPARED),
    (Verb.ABORT, Phase.ACTIVE),
    (Verb.ABORT, Phase.ABORTING),
}


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("verb", Verb)
def test_a_rotation_verb_is_accepted_only_in_the_phases_that_allow_it(verb: Verb, phase: Phase) -> None:
    rotation = None if phase is Phase.STEADY else ROTATION
    if (verb, phase) in ALLOWED:
        check_verb(verb, INTERNAL, rotation, phase)
    else:
        with pytest.raises(RotationRefused, match=f"nothing to {verb}") as refused:
            check_verb(verb, INTERNAL, rotation, phase)
        assert refused.value.remedy


@pytest.mark.parametrize("verb", Verb)
def test_a_second_rotation_at_the_same_time_is_refused(verb: Verb) -> None:
    with pytest.raises(RotationRefused, match="one at a time"):
        check_verb(verb, AuthorityKind.EDGE, ROTATION, Phase.PREPARED)


def process(issuer: str, *anchors: str, problem: str = "") -> TrustHolder:
    return TrustHolder(
        Source.PROCESS, "spiffe://td/taskmanager/tm-1", "pki", "taskmanager", 7, issuer, anchors, problem=problem
    )


def files(issuer: str, *anchors: str, usable: bool = True) -> TrustHolder:
    return TrustHolder(
        Source.FILES, "spiffe://td/taskmanager/tm-1", "pki", issuer=issuer, anchors=anchors, usable=usable
    )


def ledger(issuer: str) -> TrustHolder:
    return TrustHolder(Source.LEDGER, "spiffe://td/taskmanager/tm-1", "record 1", issuer=issuer)


@pytest.mark.parametrize(
    ("holder", "activate", "finish", "close"),
    [
        # behind: may not be activated / finished / closed because of this holder
        pytest.param(process(A, A), True, True, True, id="process that has seen nothing"),
        pytest.param(process(A, A, B), False, True, True, id="process that trusts both and presents A"),
        pytest.param(process(B, A, B), False, False, True, id="process that presents B and still trusts A"),
        pytest.param(process(B, B, A), False, False, True, id="the order of anchors does not matter here"),
        pytest.param(process(B, B), False, False, False, id="process that is done"),
        pytest.param(process(EDGE, EDGE), False, False, False, id="process of the other side"),
        pytest.param(process(B, A), True, False, True, id="process that has B's leaf and trusts A alone"),
        pytest.param(process(A, B), False, True, False, id="process that has A's leaf and trusts B alone"),
        pytest.param(process("", problem="unreadable"), True, True, True, id="report that says nothing"),
        pytest.param(files(A, A), True, True, True, id="files that nobody has touched"),
        pytest.param(files(A, A, B), False, True, True, id="files with A's leaf"),
        pytest.param(files(A, A, B, usable=False), False, False, True, id="files whose leaf of A has expired"),
        pytest.param(files(A, A, usable=False), True, False, True, id="expired, and not reached"),
        pytest.param(files(B, B), False, False, False, id="files that are done"),
        pytest.param(ledger(A), False, True, False, id="somebody elsewhere, by the ledger"),
        pytest.param(ledger(B), False, False, False, id="somebody elsewhere who was renewed"),
    ],
)
def test_a_trust_holder_holds_up_exactly_the_rotation_steps_it_is_not_ready_for(
    holder: TrustHolder, *, activate: bool, finish: bool, close: bool
) -> None:
    assert bool(lacking([holder], [SIDE], Keep.NEW)) is activate
    assert bool(presenting([holder], [SIDE], Keep.OLD)) is finish
    assert bool(trusting([holder], [SIDE], Keep.OLD)) is close


def test_an_abort_checks_trust_holders_with_the_generations_swapped() -> None:
    assert not presenting([process(A, A, B)], [SIDE], Keep.NEW)
    assert presenting([process(B, A, B)], [SIDE], Keep.NEW)
    assert trusting([files(A, A, B)], [SIDE], Keep.NEW)
    assert not trusting([files(A, A)], [SIDE], Keep.NEW)


def test_a_root_rotation_checks_trust_holders_of_both_authorities() -> None:
    edge = Generations(old=EDGE, new=STRANGER)
    late = lacking([process(A, A, B), process(EDGE, EDGE)], [SIDE, edge], Keep.NEW)
    assert [each.holder.issuer for each in late] == [EDGE]


def test_only_laggards_named_by_their_exact_identity_are_left_out() -> None:
    other = TrustHolder(Source.FILES, "spiffe://td/taskmanager/tm-2", "pki", issuer=A, anchors=(A,))
    late = lacking([process(A, A), other], [SIDE], Keep.NEW)
    assert [each.holder for each in left_out(late, ["spiffe://td/taskmanager/tm-1"])] == [other]
    assert left_out(late, ["*", "all", "spiffe://td/taskmanager"]) == late
    assert unknown_names([other], ["spiffe://td/taskmanager/tm-2", "*"]) == ("*",)


def test_a_laggard_is_described_by_its_identity_process_and_reason() -> None:
    (late,) = lacking([process(A, A)], [SIDE], Keep.NEW)
    assert str(late) == "spiffe://td/taskmanager/tm-1 (taskmanager 7): it does not trust the new authority yet"
