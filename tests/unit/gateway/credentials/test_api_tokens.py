"""The life of a token, with a clock that the test moves."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from hypothesis import given, strategies as st

from sluice.gateway.credentials.api_tokens import (
    FORGET_AFTER,
    MAX_NAME_CHARACTERS,
    MAX_TOKENS,
    MAX_TTL,
    Refusal,
    TokenBook,
    TokenRecord,
    Unauthenticated,
    redact,
)
from sluice.gateway.errors import InvalidTokenRequest, TokenNotFound, TokenStoreError
from sluice.gateway.principal import AccessRole
from sluice.pki.assertions.principal import Credential, Principal, TokenId

NOW = 1_800_000_000.0
HOUR = dt.timedelta(hours=1)


def minted(name: str = "ada", role: AccessRole = AccessRole.VIEWER) -> tuple[TokenBook, TokenRecord, str]:
    return TokenBook().mint(name, role, ttl=HOUR, now=NOW)


def refusal(book: TokenBook, token: str, now: float = NOW) -> Refusal:
    with pytest.raises(Unauthenticated) as caught:
        book.authenticate(token, now=now)
    return caught.value.refusal


def test_token_authenticates_its_principal() -> None:
    book, record, token = minted("ada", AccessRole.SUBMITTER)
    assert token.startswith(f"slc_{record.id}_")
    assert book.authenticate(token, now=NOW) == Principal(
        "ada", (AccessRole.SUBMITTER,), "token", Credential("token", record.id)
    )


def test_only_a_hash_is_kept() -> None:
    book, _, token = minted()
    secret = token.split("_")[2]
    assert secret.encode() not in book.encode()
    assert secret not in repr(book.records)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-1.0, None), (0.0, None), (3599.9, None), (3600.0, Refusal.EXPIRED), (1e9, Refusal.EXPIRED)],
)
def test_a_token_expires_exactly_at_its_expiry(seconds: float, expected: Refusal | None) -> None:
    book, _, token = minted()
    if expected is None:
        assert book.authenticate(token, now=NOW + seconds).name == "ada"
    else:
        assert refusal(book, token, NOW + seconds) is expected


def test_revoked_token_is_refused_and_stays_revoked() -> None:
    book, record, token = minted()
    revoked = book.revoke(record.id, now=NOW + 5)
    assert refusal(revoked, token, NOW + 6) is Refusal.REVOKED
    assert revoked.revoke(record.id, now=NOW + 50).find(record.id).revoked_at == int(NOW + 5)
    assert refusal(revoked, token, NOW + 1e6) is Refusal.REVOKED
    assert book.authenticate(token, now=NOW).name == "ada", "a book does not change"


def test_revoking_an_unknown_id_is_an_error_that_shows_no_secret() -> None:
    book, _, token = minted()
    with pytest.raises(TokenNotFound) as caught:
        book.revoke(TokenId(token), now=NOW)
    assert token.split("_")[2] not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda token: token[:-1] + ("0" if token[-1] != "0" else "1"), Refusal.UNKNOWN, id="last digit"),
        pytest.param(lambda token: "slc_000000000000_" + token.split("_")[2], Refusal.UNKNOWN, id="unknown id"),
        pytest.param(lambda token: token.upper(), Refusal.MALFORMED, id="upper case"),
        pytest.param(lambda token: token + "0", Refusal.MALFORMED, id="longer"),
        pytest.param(lambda token: token[:-1], Refusal.MALFORMED, id="shorter"),
        pytest.param(lambda token: token + "\n", Refusal.MALFORMED, id="newline"),
        pytest.param(lambda token: " " + token, Refusal.MALFORMED, id="blank"),
        pytest.param(lambda _: "", Refusal.MALFORMED, id="empty"),
    ],
)
def test_altered_token_is_refused(change: object, expected: Refusal) -> None:
    book, _, token = minted()
    assert callable(change)
    assert refusal(book, change(token)) is expected


def test_a_secret_with_the_id_of_another_token_is_refused() -> None:
    book, first, token = minted()
    book, second, _ = book.mint("eve", AccessRole.ADMIN, ttl=HOUR, now=NOW)
    assert refusal(book, token.replace(first.id, second.id)) is Refusal.UNKNOWN


def test_expiry_is_reported_only_for_the_right_secret() -> None:
    book, record, _ = minted()
    assert refusal(book, f"slc_{record.id}_{'0' * 64}", NOW + 1e6) is Refusal.UNKNOWN


@pytest.mark.parametrize("name", ["ada", "ada@example.org", "ci-runner_7", "a" * MAX_NAME_CHARACTERS])
def test_a_valid_principal_name_is_accepted(name: str) -> None:
    assert minted(name)[1].name == name


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "-a", "ada\n", "ada\r\nx-sluice-roles: admin", "a,b", "é", "a" * (MAX_NAME_CHARACTERS + 1), "a/b"],
)
def test_a_principal_name_unfit_for_a_header_is_refused(name: str) -> None:
    with pytest.raises(InvalidTokenRequest, match="cannot be a principal's name"):
        minted(name)


@pytest.mark.parametrize("ttl", [dt.timedelta(0), -HOUR, MAX_TTL + dt.timedelta(seconds=1)])
def test_lifetime_out_of_bounds_is_refused(ttl: dt.timedelta) -> None:
    with pytest.raises(InvalidTokenRequest, match="lifetime"):
        TokenBook().mint("ada", AccessRole.VIEWER, ttl=ttl, now=NOW)


def test_a_token_book_survives_encoding_and_decoding() -> None:
    book, record, token = minted()
    again = TokenBook.decode(book.revoke(record.id, now=NOW).encode())
    assert again.records == book.revoke(record.id, now=NOW).records
    assert refusal(again, token) is Refusal.REVOKED


def damaged(**changes: object) -> bytes:
    document = json.loads(minted()[0].encode())
    document["tokens"][0] |= changes
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="other shape"),
        pytest.param(b'{"version":1,"tokens":[{}]}', id="no members"),
        pytest.param(b'{"version":2,"tokens":[]}', id="other version"),
        pytest.param(damaged(role="Root!"), id="no role"),
        pytest.param(damaged(scopes=["a b"]), id="no scope"),
        pytest.param(damaged(expires_at=None), id="no expiry"),
        pytest.param(damaged(comment="x"), id="unknown member"),
    ],
)
def test_damaged_file_is_refused(data: bytes) -> None:
    with pytest.raises(TokenStoreError, match="damaged"):
        TokenBook.decode(data)


def test_file_with_the_same_id_twice_is_refused() -> None:
    document = json.loads(minted()[0].encode())
    document["tokens"] *= 2
    with pytest.raises(TokenStoreError, match="twice"):
        TokenBook.decode(json.dumps(document).encode())


def test_long_expired_tokens_are_forgotten() -> None:
    book, record, _ = minted()
    kept, _, _ = book.mint("eve", AccessRole.VIEWER, ttl=HOUR, now=NOW + FORGET_AFTER.total_seconds())
    assert record in kept.records
    forgotten, _, _ = book.mint("eve", AccessRole.VIEWER, ttl=HOUR, now=NOW + 3600 + FORGET_AFTER.total_seconds())
    assert record not in forgotten.records


def test_a_token_beyond_the_maximum_number_is_refused() -> None:
    _, record, _ = minted()
    full = TokenBook(
        TokenRecord(
            id=TokenId(f"{n:012x}"), name="a", role=record.role, sha256="", created_at=0, expires_at=int(NOW + 1)
        )
        for n in range(MAX_TOKENS)
    )
    with pytest.raises(InvalidTokenRequest, match=f"{MAX_TOKENS} tokens already"):
        full.mint("ada", AccessRole.VIEWER, ttl=HOUR, now=NOW)


def test_redaction_keeps_only_the_id_of_a_token() -> None:
    _, record, token = minted()
    assert redact(f"/v1/{token}/x") == f"/v1/slc_{record.id}_(secret)/x"


@given(st.text(max_size=120))
def test_arbitrary_text_never_authenticates(text: str) -> None:
    assert refusal(minted()[0], text) in {Refusal.MALFORMED, Refusal.UNKNOWN}
