"""SPIFFE IDs: valid ones, and strings that only look like one."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sluice.core.errors import InvalidIdentity
from sluice.pki.spiffe_id import NAMED_ROLES, Role, SpiffeId

JOB_ID = "0123456789abcdef" * 2

trust_domains = st.from_regex(r"[a-z0-9._-]{1,60}", fullmatch=True)
segments = st.from_regex(r"[a-zA-Z0-9._-]{1,60}", fullmatch=True).filter(lambda text: text not in {".", ".."})
job_ids = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
identities = st.one_of(
    st.builds(SpiffeId, trust_domains, st.sampled_from(sorted(NAMED_ROLES)), segments),
    st.builds(SpiffeId.driver, trust_domains, job_ids),
    st.builds(SpiffeId.executor, trust_domains, job_ids, st.integers(0, 999_999_999)),
)


@given(identities)
def test_an_identity_survives_formatting_and_parsing(identity: SpiffeId) -> None:
    assert SpiffeId.parse(str(identity)) == identity


@given(st.text(max_size=200))
def test_any_text_is_parsed_as_an_identity_or_raises_invalid_identity(text: str) -> None:
    """Never another exception; and an identity that is accepted has one spelling only."""
    try:
        identity = SpiffeId.parse(text)
    except InvalidIdentity:
        return
    assert str(identity) == text


@given(identities, st.integers(0, 200), st.text(min_size=1, max_size=3))
def test_an_identity_with_something_inserted_is_never_read_as_the_same(
    identity: SpiffeId, position: int, inserted: str
) -> None:
    text = str(identity)
    changed = text[:position] + inserted + text[position:]
    try:
        assert SpiffeId.parse(changed) != identity
    except InvalidIdentity:
        return


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("https://sluice.local/user/ada", id="other-scheme"),
        pytest.param("SPIFFE://sluice.local/user/ada", id="upper-case-scheme"),
        pytest.param("spiffe:///user/ada", id="no-trust-domain"),
        pytest.param("spiffe://Sluice.local/user/ada", id="upper-case-trust-domain"),
        pytest.param("spiffe://sluice.local:8443/user/ada", id="port"),
        pytest.param("spiffe://me@sluice.local/user/ada", id="user-info"),
        pytest.param(f"spiffe://{'a' * 256}/user/ada", id="trust-domain-too-long"),
        pytest.param("spiffe://sluice.local", id="no-path"),
        pytest.param("spiffe://sluice.local/", id="empty-path"),
        pytest.param("spiffe://sluice.local/user", id="no-name"),
        pytest.param("spiffe://sluice.local/user/", id="empty-name"),
        pytest.param("spiffe://sluice.local/user/ada/", id="trailing-slash"),
        pytest.param("spiffe://sluice.local//user/ada", id="double-slash"),
        pytest.param("spiffe://sluice.local/user/..", id="dot-dot"),
        pytest.param("spiffe://sluice.local/user/ada?x=1", id="query"),
        pytest.param("spiffe://sluice.local/user/ada#x", id="fragment"),
        pytest.param("spiffe://sluice.local/user/a%64a", id="percent"),
        pytest.param("spiffe://sluice.local/user/ada\n", id="newline"),
        pytest.param("spiffe://sluice.local/user/ada\x00", id="nul"),
        pytest.param("spiffe://sluice.local/root/ada", id="unknown-role"),
        pytest.param("spiffe://sluice.local/driver/ada", id="driver-outside-a-job"),
        pytest.param("spiffe://sluice.local/executor/1", id="executor-outside-a-job"),
        pytest.param("spiffe://sluice.local/job/1/driver", id="short-job-id"),
        pytest.param(f"spiffe://sluice.local/job/{JOB_ID.upper()}/driver", id="upper-case-job-id"),
        pytest.param(f"spiffe://sluice.local/job/{JOB_ID}/driver/1", id="driver-with-number"),
        pytest.param(f"spiffe://sluice.local/job/{JOB_ID}/executor/01", id="leading-zero"),
        pytest.param(f"spiffe://sluice.local/job/{JOB_ID}/executor/-1", id="negative"),
        pytest.param(f"spiffe://sluice.local/user/{'a' * 3000}", id="too-long"),
    ],
)
def test_a_malformed_spiffe_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidIdentity):
        SpiffeId.parse(text)


def test_a_named_role_cannot_belong_to_a_job() -> None:
    with pytest.raises(InvalidIdentity, match="does not belong to a job"):
        SpiffeId("sluice.local", Role.USER, "ada", JOB_ID)
