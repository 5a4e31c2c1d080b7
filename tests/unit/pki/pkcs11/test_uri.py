"""URIs of keys in tokens (RFC 7512): what is accepted or refused; a PIN is never repeated."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sluice.core.errors import StoreError
from sluice.pki.pkcs11.uri import TokenUri

QUERY = "?module-path=/m.so&pin-source=file:/pin"
PRINTABLE = st.text(st.characters(min_codepoint=0x20, exclude_characters="\x7f", codec="utf-8"), max_size=30)


def test_a_uri_with_all_supported_attributes_is_parsed() -> None:
    uri = TokenUri.parse(
        "pkcs11:token=My%20token;serial=00%3b1;manufacturer=Yubico;model=HSM;object=root;id=%01%ff;type=private"
        "?module-path=/usr/lib/m%20m.so&pin-source=file:///etc/sluice/pin"
    )
    assert (uri.token, uri.serial, uri.manufacturer, uri.model) == ("My token", "00;1", "Yubico", "HSM")
    assert (uri.object, uri.id, uri.module) == ("root", b"\x01\xff", "/usr/lib/m m.so")
    assert uri.pin_source == "file:/etc/sluice/pin"
    assert uri.place == TokenUri.parse(str(uri.place))
    assert (uri.place.object, uri.place.id) == ("", b"")


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ("file:/run/pin", "file:/run/pin"),
        ("/run/pin", "file:/run/pin"),
        ("file:///run/pin", "file:/run/pin"),
        ("credential:hsm-pin", "credential:hsm-pin"),
    ],
)
def test_pin_sources_are_normalized_to_a_file_or_a_credential(source: str, read: str) -> None:
    assert TokenUri.parse(f"pkcs11:token=t?module-path=/m.so&pin-source={source}").pin_source == read


@given(PRINTABLE, PRINTABLE, PRINTABLE, st.binary(max_size=64), PRINTABLE)
def test_a_uri_survives_formatting_and_parsing(
    token: str, serial: str, label: str, identifier: bytes, path: str
) -> None:
    uri = TokenUri(
        token=token or "t",
        serial=serial,
        object=label,
        id=identifier,
        module=f"/lib/{path}.so",
        pin_source=f"file:/pin/{path}",
    )
    if len(str(uri)) <= 2048:
        assert TokenUri.parse(str(uri)) == uri


@given(st.text(max_size=200))
def test_any_text_is_parsed_as_a_uri_or_refused_with_a_store_error(text: str) -> None:
    for each in (text, f"pkcs11:{text}", f"pkcs11:token=t?{text}"):
        try:
            uri = TokenUri.parse(each)
        except StoreError:
            continue
        assert TokenUri.parse(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a PKCS#11 URI"),
        ("file:/key.pem", "not a PKCS#11 URI"),
        ("pkcs11:token=\x00" + QUERY, "not a PKCS#11 URI"),
        ("pkcs11:token=t\n" + QUERY, "not a PKCS#11 URI"),
        ("pkcs11:token=" + "t" * 2048 + QUERY, "not a PKCS#11 URI"),
        ("pkcs11:object=key" + QUERY, "names no token"),
        ("pkcs11:token=" + QUERY, "names no token"),
        ("pkcs11:token=t;token=u" + QUERY, "'token' twice"),
        ("pkcs11:token=t;slot-id=1" + QUERY, "with 'slot-id'"),
        ("pkcs11:token=t;" + QUERY, "with ''"),
        ("pkcs11:token=t;object" + QUERY, "with 'object'"),
        ("pkcs11:token=%zz" + QUERY, "% that begins no escape"),
        ("pkcs11:token=%ff" + QUERY, "not UTF-8"),
        ("pkcs11:token=%0a" + QUERY, "control character"),
        ("pkcs11:token=t;type=public" + QUERY, "another type"),
        ("pkcs11:token=t;id=" + "%00" * 65 + QUERY, "more than 64 bytes"),
        ("pkcs11:token=t", "needs module-path"),
        ("pkcs11:token=t?module-path=m.so&pin-source=file:/pin", "needs module-path"),
        ("pkcs11:token=t?module-name=m&pin-source=file:/pin", "with 'module-name'"),
        ("pkcs11:token=t?module-path=/m.so", "needs pin-source"),
        ("pkcs11:token=t?module-path=/m.so&pin-source=file:pin", "needs pin-source"),
        ("pkcs11:token=t?module-path=/m.so&pin-source=%7Ccat", "needs pin-source"),
        ("pkcs11:token=t?module-path=/m.so&pin-source=credential:../x", "needs pin-source"),
        ("pkcs11:token=t?module-path=/m.so&pin-source=credential:", "needs pin-source"),
    ],
)
def test_a_malformed_or_unsupported_uri_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(StoreError, match=why.replace("'", ".").replace("+", ".")):
        TokenUri.parse(text)


@pytest.mark.parametrize("text", ["pkcs11:token=t?module-path=/m.so&pin-value=424242", "pkcs11:pin-value=424242"])
def test_a_uri_with_a_pin_is_refused_without_repeating_the_pin(text: str) -> None:
    with pytest.raises(StoreError, match="with a PIN in it") as refused:
        TokenUri.parse(text)
    assert "424242" not in str(refused.value)
