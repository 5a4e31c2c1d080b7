"""Files with a reference to a key in a token, without its PIN."""

from __future__ import annotations

from pathlib import Path

from sluice.core import StoreError, read_secret
from sluice.pki.pkcs11.uri import TokenUri


def read_reference(path: Path) -> TokenUri:
    """The reference to a key in a token that a file holds."""
    try:
        return TokenUri.parse(read_secret(path).decode("ascii").strip())
    except UnicodeDecodeError:
        raise StoreError(f"{path} holds no PKCS#11 URI", "restore it from a copy") from None
    except StoreError as error:
        raise StoreError(f"{path}: {error.what}", error.remedy) from error


def format_reference(uri: TokenUri) -> bytes:
    """Encode a reference for :func:`read_reference`."""
    return f"{uri}\n".encode("ascii")
