"""References to tokens and to keys in them: the URI scheme ``pkcs11`` (RFC 7512), as far as a reference needs it.

A reference names the module, the token, the key, and where its PIN is. It never has the PIN itself. No I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from sluice.core import StoreError

SCHEME: Final = "pkcs11:"
MAX_URI_CHARACTERS: Final = 2048
MAX_ID_BYTES: Final = 64
CREDENTIAL: Final = "credential:"
"""In ``pin-source``: the name of a systemd credential of the service."""

_PATH: Final = frozenset({"token", "serial", "manufacturer", "model", "object", "id", "type"})
_QUERY: Final = frozenset({"module-path", "pin-source"})
_NOT_ASCII_VISIBLE = re.compile(r"[^!-~]")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CREDENTIAL_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,128}")
_EXAMPLE: Final = "write pkcs11:token=LABEL?module-path=/FILE.so&pin-source=file:/FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUri:
    """A token, and a key in it unless ``id`` is empty. Attributes that are empty match anything."""

    module: str
    """The token's module: an absolute path."""
    pin_source: str
    """``file:/PATH`` or ``credential:NAME``."""
    token: str = ""
    serial: str = ""
    manufacturer: str = ""
    model: str = ""
    object: str = ""
    id: bytes = b""

    @classmethod
    def parse(cls, text: str) -> TokenUri:
        """Parse a reference; raises :class:`StoreError` if it is incomplete, without repeating a PIN in it."""
        if len(text) > MAX_URI_CHARACTERS or _NOT_ASCII_VISIBLE.search(text) or not is_token_uri(text):
            raise StoreError("this is not a PKCS#11 URI (RFC 7512)", _EXAMPLE)
        path, _, query = text[len(SCHEME) :].partition("?")
        found = _attributes(path, ";", _PATH) | _attributes(query, "&", _QUERY)
        if found.get("type", b"private") != b"private":
            raise StoreError("a PKCS#11 URI with another type than `private`", "leave out `type`")
        identifier = found.get("id", b"")
        if len(identifier) > MAX_ID_BYTES:
            raise StoreError(f"the `id` of a PKCS#11 URI has more than {MAX_ID_BYTES} bytes")
        words = {name: _text(name, value) for name, value in found.items() if name != "id"}
        if not words.get("token") and not words.get("serial"):
            raise StoreError("a PKCS#11 URI names no token", "give token=LABEL or serial=NUMBER")
        return cls(
            module=_module(words.get("module-path", "")),
            pin_source=_pin_source(words.get("pin-source", "")),
            id=identifier,
            **{name: words.get(name, "") for name in ("token", "serial", "manufacturer", "model", "object")},
        )

    def __str__(self) -> str:
        path = [
            f"{name}={quote(value, safe='')}"
            for name in ("token", "serial", "manufacturer", "model", "object")
            if (value := getattr(self, name))
        ]
        if self.id:
            path += ["id=" + "".join(f"%{byte:02x}" for byte in self.id), "type=private"]
        query = f"module-path={quote(self.module, safe='/')}&pin-source={quote(self.pin_source, safe='/:')}"
        return f"{SCHEME}{';'.join(path)}?{query}"

    @property
    def place(self) -> TokenUri:
        """The reference to the token, without a key."""
        return replace(self, object="", id=b"")

    @property
    def name(self) -> str:
        """The name of the token for messages."""
        return f"token {self.token or self.serial!r}" if self.token else f"the token with serial number {self.serial}"

    def key(self, label: str, identifier: bytes) -> TokenUri:
        """The reference to a key in this token."""
        return replace(self, object=label, id=identifier)


def is_token_uri(text: str) -> bool:
    """Whether ``text`` looks like a reference."""
    return text[: len(SCHEME)].lower() == SCHEME


def _attributes(part: str, separator: str, known: frozenset[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for each in part.split(separator) if part else ():
        name, equals, value = each.partition("=")
        if name == "pin-value":
            raise StoreError(
                "a PKCS#11 URI with a PIN in it: it is in the shell's history now",
                "write the PIN into a file of mode 0600, give pin-source=file:/FILE, and change the PIN",
            )
        if name not in known or not equals:
            raise StoreError(f"a PKCS#11 URI with {name[:40]!r}", f"possible are {', '.join(sorted(known))}")
        if name in found:
            raise StoreError(f"a PKCS#11 URI has {name!r} twice", "leave out one")
        if _BROKEN_ESCAPE.search(value):
            raise StoreError(f"{name!r} in a PKCS#11 URI has a % that begins no escape", "write %25")
        found[name] = unquote_to_bytes(value)
    return found


def _text(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise StoreError(f"{name!r} in a PKCS#11 URI is not UTF-8") from None
    if _CONTROL.search(text):
        raise StoreError(f"{name!r} in a PKCS#11 URI has a control character")
    return text


def _module(path: str) -> str:
    if not PurePosixPath(path).is_absolute():
        raise StoreError("a PKCS#11 URI needs module-path=/FILE.so", "it is the library that came with the token")
    return path


def _pin_source(source: str) -> str:
    if source.startswith(CREDENTIAL) and _CREDENTIAL_NAME.fullmatch(source.removeprefix(CREDENTIAL)):
        return source
    path = source.removeprefix("file:").removeprefix("//") if source.startswith("file:") else source
    if not PurePosixPath(path).is_absolute():
        raise StoreError(
            "a PKCS#11 URI needs pin-source=file:/FILE",
            "FILE has the PIN in its first line, and mode 0600; or pin-source=credential:NAME, of systemd",
        )
    return f"file:{path}"
