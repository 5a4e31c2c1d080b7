"""PKCS#11 URIs on the command line: tokens for new keys."""

from __future__ import annotations

from sluice.cli.errors import UsageError
from sluice.core import StoreError
from sluice.pki.pkcs11 import TokenUri


def key_argument(text: str) -> TokenUri:
    """Parse the token for a new key."""
    try:
        uri = TokenUri.parse(text)
    except StoreError as error:
        raise UsageError(error.what, error.remedy) from error
    if uri.object or uri.id:
        raise UsageError("--key names a token, and the key is made in it", "leave out `object` and `id`")
    return uri
