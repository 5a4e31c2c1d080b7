"""The files of the ACME client below ``gateway/acme``. Keys have mode 0600; files are replaced atomically.

::

    accounts/DIGEST/key.pem, account.json     one account per server directory
    pending/TYPE.pem, order.json              the order in progress: a crash loses neither the key nor the order
    certificates/NUMBER/fullchain.pem, privkey.pem
    live -> certificates/NUMBER               what the gateway presents; switched atomically
    challenges.json, state.json
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from sluice.core import (
    PUBLIC_MODE,
    SECRET_MODE,
    Home,
    StoreError,
    locked,
    make_private_directory,
    read_bounded,
    read_secret,
    replace_set,
    staged_name,
    sync_directory,
    write_secret,
)
from sluice.gateway.acme.challenges import ChallengeFile
from sluice.gateway.acme.schedule import RenewalState
from sluice.gateway.config import AcmeConfig
from sluice.gateway.errors import AcmeError
from sluice.pki.x509 import PrivateKey, generate_key, key_from_pem, key_to_pem

_T = TypeVar("_T")

MAX_RECORD_BYTES = 64 << 10
MAX_KEY_BYTES = 32 << 10
KEPT_CERTIFICATES = 2
"""The current one and the previous one."""
CHAIN, KEY = "fullchain.pem", "privkey.pem"
_ACCOUNT_KEY = "ecdsa-p256"
"""Every ACME server supports it (ES256: RFC 8555, 6.2)."""


class AccountRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An account that the server has created."""

    directory: str
    url: str


class OrderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An order that the server has accepted."""

    directory: str
    url: str
    names: tuple[str, ...]
    key_type: str
    csr: str


class AcmeStore:
    """The ACME files of one home. Writers hold :meth:`ordering`; readers always find complete files."""

    def __init__(self, home: Home) -> None:
        self.directory = home.gateway / "acme"
        self.challenges = ChallengeFile(self.directory / "challenges.json")

    @property
    def live(self) -> Path:
        """The symbolic link to the certificate in use."""
        return self.directory / "live"

    @contextlib.contextmanager
    def ordering(self) -> Iterator[None]:
        """Lock that lets only one process order at a time. Raises :class:`AcmeError` if another process holds it."""
        make_private_directory(self.directory)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.directory, patience=0))
            except StoreError as error:
                raise AcmeError("another process is ordering a certificate", "wait until it has finished") from error
            yield

    def state(self) -> RenewalState:
        """Earlier attempts. A damaged file counts as empty, which costs at most one extra attempt."""
        return self._record(self.directory / "state.json", RenewalState) or RenewalState()

    def save_state(self, state: RenewalState) -> None:
        """Store the state before any request to the server. Raises :class:`StoreError` if it cannot be written."""
        make_private_directory(self.directory)
        write_secret(self.directory / "state.json", msgspec.json.encode(state))

    def account_key(self, directory: str) -> PrivateKey:
        """The key of the account at the server ``directory``. It is generated on first use."""
        place = make_private_directory(self._account(directory))
        return _key_at(place / "key.pem", _ACCOUNT_KEY)

    def account(self, directory: str) -> AccountRecord | None:
        """The account at the server ``directory``; None if none is recorded here."""
        found = self._record(self._account(directory) / "account.json", AccountRecord)
        return found if found is not None and found.directory == directory else None

    def save_account(self, record: AccountRecord) -> None:
        """Store the account."""
        write_secret(self._account(record.directory) / "account.json", msgspec.json.encode(record))

    def forget_account(self, directory: str) -> None:
        """Remove the record of an account that the server no longer knows. The key stays."""
        (self._account(directory) / "account.json").unlink(missing_ok=True)

    def pending_key(self, algorithm: str) -> PrivateKey:
        """The key of the order in progress. It is on disk before the first request to the server."""
        return _key_at(make_private_directory(self._pending) / f"{algorithm}.pem", algorithm)

    def pending_order(self, directory: str, names: tuple[str, ...], key_type: str) -> OrderRecord | None:
        """The order in progress, if it is for these names and this key type at this server."""
        found = self._record(self._pending / "order.json", OrderRecord)
        wanted = directory, names, key_type
        return found if found is not None and (found.directory, found.names, found.key_type) == wanted else None

    def save_order(self, record: OrderRecord) -> None:
        """Store the order before it is validated."""
        write_secret(self._pending / "order.json", msgspec.json.encode(record))

    def drop_order(self) -> None:
        """Remove an order that is finished or cannot be continued, together with its key."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._pending)

    def drop_order_record(self) -> None:
        """Remove an order that cannot be continued. The next order uses its key."""
        (self._pending / "order.json").unlink(missing_ok=True)

    def stage(self, chain: bytes, key: PrivateKey) -> Path:
        """Write a new chain and key without using them yet. Returns their directory."""
        parent = make_private_directory(self.directory / "certificates")
        numbers = [int(each.name) for each in parent.iterdir() if each.name.isdigit()]
        place = make_private_directory(parent / f"{max(numbers, default=0) + 1:06d}")
        try:
            replace_set(place, {KEY: (key_to_pem(key), SECRET_MODE), CHAIN: (chain, PUBLIC_MODE)})
        except StoreError:
            shutil.rmtree(place, ignore_errors=True)
            raise
        sync_directory(parent)
        return place

    def activate(self, place: Path) -> None:
        """Switch atomically to the chain and key in ``place``, and remove old certificates."""
        temporary = self.directory / staged_name("live")
        try:
            temporary.symlink_to(place.relative_to(self.directory))
            temporary.replace(self.live)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StoreError(
                f"cannot write {self.live}: {error.strerror or error}",
                "check disk space and permissions; nothing was changed",
            ) from error
        sync_directory(self.directory)
        self.drop_order()
        older = sorted(each for each in place.parent.iterdir() if each.name.isdigit() and each.name < place.name)
        for each in older[: max(0, len(older) - KEPT_CERTIFICATES + 1)]:
            shutil.rmtree(each, ignore_errors=True)

    @property
    def _pending(self) -> Path:
        return self.directory / "pending"

    def _account(self, directory: str) -> Path:
        return self.directory / "accounts" / hashlib.sha256(directory.encode()).hexdigest()[:16]

    def _record(self, path: Path, kind: type[_T]) -> _T | None:
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(read_bounded(path, MAX_RECORD_BYTES), type=kind)
        except msgspec.MsgspecError:
            return None


def issued_files(home: Home) -> tuple[Path, Path]:
    """Paths of the chain and key in use. The files may not exist yet."""
    live = AcmeStore(home).live
    return live / CHAIN, live / KEY


def settings_digest(config: AcmeConfig, names: tuple[str, ...]) -> str:
    """Digest of the settings that affect an attempt."""
    return hashlib.sha256(msgspec.json.encode((config, sorted(names)))).hexdigest()[:16]


def _key_at(path: Path, algorithm: str) -> PrivateKey:
    if not path.exists():
        write_secret(path, key_to_pem(generate_key(algorithm)))
    return key_from_pem(read_secret(path, MAX_KEY_BYTES), str(path))
