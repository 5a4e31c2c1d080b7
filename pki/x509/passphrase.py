"""Passphrases: from a private file or a prompt, never from a command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sluice.core import StoreError, read_secret

MIN_PASSPHRASE_BYTES = 12
"""Shortest passphrase for a new key: it must resist guessing with a stolen copy of the file."""
MAX_PASSPHRASE_BYTES = 1023
"""Longest passphrase, in bytes: what OpenSSL reads (PEM_BUFSIZE less its end)."""
PROMPT = "-"
"""In place of a file: prompt."""

Ask = Callable[[str], str]


def read_passphrase(source: Path, ask: Ask, *, new: bool, of: str = "the root's key") -> bytes:
    """The passphrase in the first line of ``source`` (mode 0600), or what ``ask`` returns when it is ``-``.

    Args:
        source: a file, or ``-``.
        ask: shows its argument as a prompt, and returns the hidden input.
        new: for a new key: it must be long enough, and is asked for twice.
        of: what it opens, for the prompt.

    Raises:
        StoreError: unreadable, readable by others, empty, too short or too long, or not typed the same twice.
    """
    if str(source) == PROMPT:
        passphrase = ask(f"Passphrase of {of}: ").encode()
        if new and ask("The same again: ").encode() != passphrase:
            raise StoreError("the two passphrases are not the same", "try again; nothing was changed")
    else:
        passphrase = read_secret(source, MAX_PASSPHRASE_BYTES + 2).split(b"\n", 1)[0].removesuffix(b"\r")
    if not passphrase or len(passphrase) > MAX_PASSPHRASE_BYTES:
        raise StoreError(f"a passphrase has 1 to {MAX_PASSPHRASE_BYTES} bytes", "put it into the file's first line")
    if new and len(passphrase) < MIN_PASSPHRASE_BYTES:
        raise StoreError(
            f"a passphrase of {len(passphrase)} bytes is too short",
            f"use {MIN_PASSPHRASE_BYTES} or more, as in `openssl rand -base64 24`",
        )
    return passphrase
