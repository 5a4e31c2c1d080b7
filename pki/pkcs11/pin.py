"""The PIN of a token: from a private file, or from a credential of systemd; never from argv or the environment."""

from __future__ import annotations

import os
from pathlib import Path

from sluice.core import StoreError, read_bounded, read_secret
from sluice.pki.pkcs11.uri import CREDENTIAL

MAX_PIN_BYTES = 255


def read_pin(source: str) -> str:
    """The first line of ``source``, which is the ``pin_source`` of a reference."""
    if source.startswith(CREDENTIAL):
        name, directory = source.removeprefix(CREDENTIAL), os.environ.get("CREDENTIALS_DIRECTORY", "")
        if not directory:
            raise StoreError(
                f"there are no credentials of systemd, and the PIN is in {name!r}",
                f"LoadCredential={name}:/FILE in the unit, or pin-source=file:/FILE in the reference",
            )
        # Only this service can enter the directory; an access list may show up as group permissions.
        content = read_bounded(Path(directory, name), MAX_PIN_BYTES + 2)
    else:
        content = read_secret(Path(source.removeprefix("file:")), MAX_PIN_BYTES + 2)
    try:
        pin = content.split(b"\n", 1)[0].removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise StoreError(f"the PIN in {source} is not UTF-8") from None
    if not pin:
        raise StoreError(f"there is no PIN in {source}", "write it into the first line")
    return pin
