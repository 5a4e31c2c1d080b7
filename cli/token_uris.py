"""PKCS#11 URIs on the command line: tokens in which keys are to be made."""

from __future__ import annotations

from sluice.cli.errors import UsageError
from sluice.core import StoreError
from sluice.pki.pkcs11 import TokenUri


def key_argument(text: str) -> TokenUri:
    """A token in which a key is to be made."""
    try:
        uri = TokenUri.parse(text)
    except StoreError as error:
        raise UsageError(error.what, error.remedy) from error
    if uri.object or uri.id:
        raise UsageError("--key names a token, and the key is made in it", "leave out `object` and `id`")
    return uri
