"""What the online authority grants: only the one identity that was fixed beforehand."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, strategies as st

from sluice.core.errors import CertificateRejected, PkiError, StoreError
from sluice.pki.authorities.signing import (
    Authority,
    create_intermediate,
    create_root,
    sign_leaf,
)
from sluice.pki.ca.policy import grant_enrolment, grant_job, grant_renewal, grant_token
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.config import PkiConfig
from sluice.pki.errors import EnrolmentRefused, IssuanceRefused
from sluice.pki.identities.join_tokens import ENROLLABLE, MAX_TTL, JoinToken, TokenRecord, check_token, mint
from sluice.pki.rate_limit import MAX_REQUESTERS, RateLimiter
from sluice.pki.spiffe_id import NAMED_ROLES, Role, SpiffeId
from sluice.pki.x509.csr import load_csr, new_csr
from sluice.pki.x509.key_identifiers import fingerprint
from sluice.pki.x509.keys import PublicKey, same_public_key
from sluice.pki.x509.profiles import AuthorityKind, Names, workload_profile

NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)
CONFIG = PkiConfig(trust_domain="td")
ROOT = create_root(CONFIG, NOW)
INTERNAL: Authority = create_intermediate(AuthorityKind.INTERNAL, ROOT, CONFIG, NOW)
JOB = "a" * 32
WORKER = SpiffeId.process("td", Role.TASKMANAGER, "tm-1")
MASTER = SpiffeId.process("td", Role.JOBMANAGER, "jm-1")

labels = st.from_regex(r"[a-z]([a-z0-9]{0,8})", fullmatch=True)
enrollable = st.builds(SpiffeId.process, st.just("td"), st.sampled_from(sorted(ENROLLABLE)), labels)
hosts = st.lists(labels, max_size=3, unique=True)
process_roles = st.sampled_from(sorted(NAMED_ROLES))
identities = st.one_of(
    st.builds(SpiffeId.process, st.sampled_from(["td", "other"]), process_roles, labels),
    st.builds(SpiffeId.driver, st.sampled_from(["td", "other"]), st.sampled_from([JOB, "b" * 32])),
    st.builds(SpiffeId.executor, st.sampled_from(["td", "other"]), st.just(JOB), st.integers(0, 9)),
)


def token_for(spiffe_id: SpiffeId, dns: list[str] | None = None) -> tuple[TokenRecord, str]:
    return mint(spiffe_id, INTERNAL.certificate, dns=dns or [], now=NOW)


def leaf_of(spiffe_id: SpiffeId, dns: list[str], *, start: dt.datetime = NOW) -> x509.Certificate:
    _, csr = new_csr(spiffe_id, dns=dns)
    key = load_csr(csr).public_key()
    assert isinstance(key, PublicKey)
    return sign_leaf(
        INTERNAL,
        key,
        Names.checked(spiffe_id, dns, ()),
        workload_profile(spiffe_id.role, CONFIG),
        now=start,
        backdate=dt.timedelta(0),
    )


@given(enrollable, hosts, identities, hosts)
def test_a_join_token_is_granted_only_its_own_names(
    bound: SpiffeId, bound_dns: list[str], asked: SpiffeId, asked_dns: list[str]
) -> None:
    """For any request, a grant has the token's names and the request's key, or it is refused."""
    if asked.role is Role.TASKMANAGER:
        asked, asked_dns = bound, bound_dns if len(asked_dns) < 2 else asked_dns
    record, _ = token_for(bound, bound_dns)
    _, csr = new_csr(asked, dns=asked_dns)
    right = asked == bound and set(asked_dns) == set(bound_dns)
    try:
        grant = grant_enrolment(record, csr, CONFIG)
    except PkiError:
        assert not right
        return
    assert right
    assert (grant.names, grant.token, grant.requester) == (record.names(), record.id, f"token:{record.id}")
    assert grant.key is not None
    assert same_public_key(grant.key, load_csr(csr).public_key())


@given(identities, hosts, identities, hosts)
def test_a_renewal_is_granted_only_the_names_of_the_present_certificate(
    holder: SpiffeId, has_dns: list[str], asked: SpiffeId, asked_dns: list[str]
) -> None:
    if holder.role is Role.USER:
        return  # of the edge authority: see the channel's tests
    if asked.role is Role.TASKMANAGER:
        asked, asked_dns = holder, has_dns if len(asked_dns) < 2 else asked_dns
    _, csr = new_csr(asked, dns=asked_dns)
    right = (
        asked == holder and holder.role in ENROLLABLE and holder.trust_domain == "td" and set(asked_dns) == set(has_dns)
    )
    try:
        grant = grant_renewal(leaf_of(holder, has_dns), csr, CONFIG, now=NOW)
    except PkiError:
        assert not right
        return
    assert right
    assert grant.names == Names.checked(holder, has_dns, ())


@given(identities, identities, identities, st.one_of(st.none(), st.integers(-10, 10_000)))
def test_job_identities_are_granted_only_to_jobmanagers_of_the_trust_domain(
    requester: SpiffeId, wanted: SpiffeId, asked: SpiffeId, seconds: int | None
) -> None:
    _, csr = new_csr(asked)
    lifetime = None if seconds is None else dt.timedelta(seconds=seconds)
    right = (
        requester.role is Role.JOBMANAGER
        and requester.trust_domain == wanted.trust_domain == "td"
        and wanted.role in {Role.DRIVER, Role.EXECUTOR}
        and asked == wanted
        and (seconds is None or 60 <= seconds <= 3600)
    )
    try:
        grant = grant_job(requester, str(wanted), csr, lifetime, CONFIG)
    except PkiError:
        assert not right
        return
    assert right
    assert grant.names == Names(wanted)
    assert grant.lifetime == lifetime
    assert grant.profile.lifetime == dt.timedelta(hours=1)


def test_a_job_identity_with_host_names_is_refused() -> None:
    driver = SpiffeId.driver("td", JOB)
    _, csr = new_csr(driver, dns=["db.example.org"])
    with pytest.raises(CertificateRejected, match="may not have"):
        grant_job(MASTER, str(driver), csr, None, CONFIG)


@pytest.mark.parametrize(
    "wanted", ["", "spiffe://td", "spiffe://td/ca/ca-1", "job/x", "spiffe://td/job/../ca/ca-1", "é"]
)
def test_an_identity_other_than_of_a_job_is_not_granted_to_a_jobmanager(wanted: str) -> None:
    _, csr = new_csr(SpiffeId.driver("td", JOB))
    with pytest.raises(IssuanceRefused):
        grant_job(MASTER, wanted, csr, None, CONFIG)


@given(identities, identities)
def test_job_tokens_are_granted_only_to_jobmanagers_of_the_trust_domain(requester: SpiffeId, wanted: SpiffeId) -> None:
    right = (
        requester.role is Role.JOBMANAGER
        and requester.trust_domain == wanted.trust_domain == "td"
        and wanted.role in {Role.DRIVER, Role.EXECUTOR}
    )
    try:
        grant = grant_token(requester, str(wanted), ["a", "a"], CONFIG)
    except PkiError:
        assert not right
        return
    assert right
    assert (grant.spiffe_id, grant.audience, grant.lifetime) == (wanted, ("a",), dt.timedelta(minutes=5))


@pytest.mark.parametrize("wanted", ["", "spiffe://td/ca/ca-1", "spiffe://td/job/../ca/ca-1", "é"])
def test_a_job_token_for_an_identity_other_than_of_a_job_is_refused(wanted: str) -> None:
    with pytest.raises(IssuanceRefused):
        grant_token(MASTER, wanted, ["a"], CONFIG)


@pytest.mark.parametrize(
    "issuer", ["http://a.example", "https://", "https://a.example/", "https://u@a.example", "https://a.example?x", "a"]
)
def test_an_invalid_token_issuer_url_is_refused(issuer: str) -> None:
    with pytest.raises(ValueError, match="token_issuer"):
        PkiConfig(token_issuer=issuer)


@pytest.mark.parametrize("hours", [-1.0, 25.0])
def test_a_certificate_that_is_not_valid_now_cannot_be_renewed(hours: float) -> None:
    _, csr = new_csr(WORKER)
    with pytest.raises(IssuanceRefused, match="not valid now"):
        grant_renewal(leaf_of(WORKER, []), csr, CONFIG, now=NOW + dt.timedelta(hours=hours))


def test_a_csr_with_a_wrong_signature_is_refused() -> None:
    damaged = bytearray(load_csr(new_csr(WORKER)[1]).public_bytes(Encoding.DER))
    damaged[-1] ^= 1
    csr = x509.load_der_x509_csr(bytes(damaged)).public_bytes(Encoding.PEM)
    with pytest.raises(CertificateRejected):
        grant_enrolment(token_for(WORKER)[0], csr, CONFIG)


@pytest.mark.parametrize("role", Role)
def test_join_tokens_exist_only_for_named_roles_except_ca_and_user(role: Role) -> None:
    """Neither a second authority, nor a user, nor anything of a job enrols with a join token."""
    of_job = {Role.DRIVER: SpiffeId.driver("td", JOB), Role.EXECUTOR: SpiffeId.executor("td", JOB, 1)}
    spiffe_id = of_job.get(role) or SpiffeId.process("td", role, "x")
    if role in NAMED_ROLES - {Role.CA, Role.USER}:
        assert token_for(spiffe_id)[0].identity == str(spiffe_id)
    else:
        with pytest.raises(CertificateRejected, match="no join token"):
            token_for(spiffe_id)


def test_a_join_token_of_another_trust_domain_is_refused() -> None:
    stranger = SpiffeId.process("other", Role.TASKMANAGER, "tm-1")
    with pytest.raises(EnrolmentRefused):
        grant_enrolment(token_for(stranger)[0], new_csr(stranger)[1], CONFIG)


def test_a_join_token_is_valid_until_it_is_used_or_expires() -> None:
    record, text = token_for(WORKER)
    token = JoinToken.parse(text)
    assert token.fingerprint == fingerprint(INTERNAL.certificate)
    assert check_token(token, record, used=False, now=NOW) == record
    with pytest.raises(EnrolmentRefused, match="used already"):
        check_token(token, record, used=True, now=NOW)
    with pytest.raises(EnrolmentRefused, match="expired"):
        check_token(token, record, used=False, now=NOW + dt.timedelta(minutes=15))


def test_the_record_errors_and_repr_of_a_join_token_do_not_reveal_its_secret() -> None:
    record, text = token_for(WORKER)
    secret = text.split("_")[2]
    with pytest.raises(EnrolmentRefused) as refused:
        JoinToken.parse(text + "x")
    for shown in (repr(record), repr(JoinToken.parse(text)), str(refused.value)):
        assert secret not in shown


def test_unknown_and_wrong_join_tokens_get_the_same_answer() -> None:
    record, text = token_for(WORKER)
    other = text[:20] + ("0" if text[20] != "0" else "1") + text[21:]
    for token, kept in ((text, None), (other, record), (text, token_for(WORKER)[0])):
        with pytest.raises(EnrolmentRefused, match="not known"):
            check_token(JoinToken.parse(token), kept, used=True, now=NOW)


@given(st.text(max_size=300))
def test_a_malformed_join_token_is_refused(text: str) -> None:
    with pytest.raises(EnrolmentRefused):
        JoinToken.parse(text)


@pytest.mark.parametrize("ttl", [dt.timedelta(0), dt.timedelta(seconds=-1), MAX_TTL * 2])
def test_a_join_token_with_an_invalid_lifetime_is_refused(ttl: dt.timedelta) -> None:
    with pytest.raises(CertificateRejected, match="cannot live"):
        mint(WORKER, INTERNAL.certificate, ttl=ttl, now=NOW)


def test_stored_join_tokens_are_private_and_removed_when_expired(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    record, text = token_for(WORKER)
    store.add(record, now=NOW)
    file = tmp_path / "ca" / "tokens" / f"{record.id}.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert text.split("_")[2].encode() not in file.read_bytes()
    assert store.find(JoinToken.parse(text)) == record
    later = NOW + dt.timedelta(hours=1)
    store.add(mint(WORKER, INTERNAL.certificate, now=later)[0], now=later)
    assert store.find(JoinToken.parse(text)) is None
    file.write_bytes(b"{}")
    file.chmod(0o600)
    with pytest.raises(StoreError, match="damaged"):
        store.find(JoinToken.parse(text))


@given(st.lists(st.floats(0, 5), max_size=60))
def test_rate_is_never_above_burst_plus_refill(steps: list[float]) -> None:
    now, admitted = 0.0, 0
    limiter = RateLimiter(burst=3, per_second=2, clock=lambda: now)
    for step in steps:
        now += step
        admitted += limiter.take("one") == 0
    assert admitted <= 3 + 2 * now + 1e-6


def test_a_rate_limited_requester_gets_a_wait_time_and_others_are_unaffected() -> None:
    now = 0.0
    limiter = RateLimiter(burst=1, per_second=0.5, clock=lambda: now)
    assert limiter.take("one") == 0
    wait = limiter.take("one")
    assert wait == pytest.approx(2.0)
    assert limiter.take("two") == 0
    now += wait
    assert limiter.take("one") == 0


def test_the_number_of_remembered_requesters_is_bounded() -> None:
    limiter = RateLimiter(burst=1, per_second=1, clock=lambda: 0.0)
    for number in range(MAX_REQUESTERS + 10):
        assert limiter.take(str(number)) == 0
    assert len(limiter._buckets) == MAX_REQUESTERS
