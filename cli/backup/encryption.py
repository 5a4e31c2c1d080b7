"""Encryption of backups: age files (age-encryption.org/v1), which the programs age and rage open too.

With a passphrase the file begins with a small age file in ASCII armour: the identity that opens the rest, encrypted
with the passphrase. So with every kind of key, the content is encrypted as a stream with authenticated order and end.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import pyrage

from sluice.cli.backup.errors import BackupDamaged, BackupFailed
from sluice.cli.backup.passphrase import BEGIN, END, decrypt_text, encrypt_text
from sluice.cli.errors import UsageError
from sluice.core import StoreError, read_secret

ARMOUR, ARMOUR_END = f"{BEGIN}\n".encode(), f"{END}\n".encode()
MAX_KEY_BLOCK_BYTES = 4096
MAX_IDENTITY_BYTES = 64 << 10
MAX_RECIPIENTS = 32


class Source(Protocol):
    """A readable source; ``failure`` is the error that stopped it."""

    failure: Exception | None

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a backup: a passphrase, or the identities in a file of ``age-keygen`` or ``sluice backup key``."""

    passphrase: str = ""
    identities: tuple[pyrage.x25519.Identity, ...] = ()

    def __repr__(self) -> str:
        return "Keys()"


def new_identity() -> tuple[str, str]:
    """Make a key pair; returns the text of an identity file, and the recipient."""
    identity = pyrage.x25519.Identity.generate()
    recipient = str(identity.to_public())
    return f"# public key: {recipient}\n{identity}\n", recipient


def read_identities(path: Path) -> tuple[pyrage.x25519.Identity, ...]:
    """The identities in a file of mode 0600; raises ``StoreError``."""
    found = []
    for line in read_secret(path, MAX_IDENTITY_BYTES).decode("ascii", "replace").splitlines():
        if not (text := line.strip()) or text.startswith("#"):
            continue
        try:
            found.append(pyrage.x25519.Identity.from_str(text))
        except pyrage.IdentityError:
            raise StoreError(
                f"{path} is not a file of age identities", "lines AGE-SECRET-KEY-1…, as of age-keygen"
            ) from None
    if not found:
        raise StoreError(f"{path} has no age identity")
    return tuple(found)


def read_recipients(texts: Sequence[str]) -> list[pyrage.x25519.Recipient]:
    """Parse recipients of the command line; raises ``UsageError``."""
    if len(texts) > MAX_RECIPIENTS:
        raise UsageError(f"{len(texts)} recipients are more than {MAX_RECIPIENTS}")
    found = []
    for text in texts:
        try:
            found.append(pyrage.x25519.Recipient.from_str(text))
        except pyrage.RecipientError:
            raise UsageError(
                f"{text[:80]!r} is not the recipient of an age key", "age1…, as `sluice backup key` prints"
            ) from None
    return found


class HashingWriter:
    """Counts and hashes the data written to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.failure: OSError | None = None

    @property
    def sha256(self) -> str:
        """Of everything written."""
        return self._hash.hexdigest()

    def write(self, data: bytes) -> int:
        """All of ``data``."""
        try:
            self._file.write(data)
        except OSError as error:
            self.failure = error
            raise
        self._hash.update(data)
        return len(data)

    def flush(self) -> None:
        """Pass it on to the kernel."""
        self._file.flush()


def encrypt(
    source: Source, target: HashingWriter, recipients: Sequence[pyrage.x25519.Recipient], passphrase: str
) -> None:
    """Encrypt all of ``source``; at least one recipient, or a passphrase.

    Raises :class:`BackupFailed`: it could not be written; or the failure of ``source``.
    """
    wanted = list(recipients)
    try:
        if passphrase:
            identity = pyrage.x25519.Identity.generate()
            wanted.append(identity.to_public())
            target.write(encrypt_text(str(identity).encode(), passphrase))
        pyrage.encrypt_io(_as_file(source), _as_file(target), wanted)
    except (pyrage.EncryptError, OSError) as error:
        if source.failure is not None:
            raise source.failure from None
        reason = target.failure.strerror if target.failure is not None else str(error)
        raise BackupFailed(f"cannot write the backup: {reason}", "check the space on the disk") from error


def _as_file(stream: object) -> BufferedIOBase:
    """Adapt the type: pyrage needs only ``read``, or ``write`` and ``flush``."""
    return cast("BufferedIOBase", stream)


class _HashingReader:
    def __init__(self, file: BinaryIO, begin: bytes) -> None:
        self._file = file
        self._hash = hashlib.sha256(begin)

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


@contextlib.contextmanager
def decrypted(path: Path, keys: Keys, *, sha256: str = "") -> Iterator[BinaryIO]:
    """The decrypted content of a backup, which is verified only when the block ends without an error.

    Raises :class:`BackupDamaged`: it does not open with these keys, was changed, or is incomplete.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    with file:
        begin, identities = _unlock(file, path, keys)
        source = _HashingReader(file, begin)
        inside, outside = os.pipe()
        decryption = _Decryption(source, outside, identities)
        with os.fdopen(inside, "rb") as plain:
            decryption.start()
            try:
                yield plain
                # Read the rest: only the end of the file authenticates all before it.
                while plain.read(1 << 20):
                    pass
            except BaseException:
                plain.close()  # wakes up the thread
                decryption.join()
                if decryption.failed_itself:
                    raise _damaged(path, decryption.error) from decryption.error
                raise
        decryption.join()
        if decryption.error is not None:
            raise _damaged(path, decryption.error) from decryption.error
        if sha256 and source.hexdigest() != sha256.lower():
            raise BackupDamaged(f"{path} has SHA-256 {source.hexdigest()}, not {sha256[:64]}", "it is another backup")


class _Decryption(threading.Thread):
    """Decrypts into a pipe."""

    def __init__(self, source: _HashingReader, descriptor: int, identities: Sequence[pyrage.x25519.Identity]) -> None:
        super().__init__(name="decrypt", daemon=True)
        self._source, self._descriptor, self._identities = source, descriptor, identities
        self.error: Exception | None = None
        self._broken = False

    @property
    def failed_itself(self) -> bool:
        """Whether decryption failed, not its reader."""
        return self.error is not None and not self._broken

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except BrokenPipeError:
            self._broken = True
            raise
        return len(data)

    def flush(self) -> None:
        """Does nothing: there is no buffer."""

    def run(self) -> None:
        try:
            pyrage.decrypt_io(_as_file(self._source), _as_file(self), list(self._identities))
        except Exception as error:  # noqa: BLE001  the reader gets every error
            self.error = error
        finally:
            os.close(self._descriptor)


def _unlock(file: BinaryIO, path: Path, keys: Keys) -> tuple[bytes, Sequence[pyrage.x25519.Identity]]:
    """Read the header before the encrypted part; returns the key that opens it."""
    begin = file.read(MAX_KEY_BLOCK_BYTES)
    if not begin.startswith(ARMOUR):
        file.seek(0)
        if not keys.identities:
            raise BackupDamaged(f"{path} has no passphrase, or is not a backup", "open it with --identity")
        return b"", keys.identities
    end = begin.find(ARMOUR_END)
    if end < 0:
        raise BackupDamaged(f"{path} is not a backup: the key at its beginning does not end")
    block = begin[: end + len(ARMOUR_END)]
    file.seek(len(block))
    if keys.identities:
        return block, keys.identities
    if not keys.passphrase:
        raise BackupDamaged(f"{path} has a passphrase", "give it with --passphrase-file FILE, or - to type it")
    try:
        text = decrypt_text(block, keys.passphrase).decode()
        return block, (pyrage.x25519.Identity.from_str(text),)
    except (BackupDamaged, pyrage.IdentityError, UnicodeDecodeError) as error:
        raise BackupDamaged(f"{path} does not open: {error}") from None


def _damaged(path: Path, error: Exception | None) -> BackupDamaged:
    if isinstance(error, pyrage.DecryptError):
        return BackupDamaged(f"{path} does not open: {error}", "is this the identity that it was made for?")
    return BackupDamaged(f"{path} was changed, or is incomplete: {error}", "use another copy of it")
