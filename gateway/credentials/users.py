"""Users of a cluster without an identity provider: names, roles, groups, and scrypt hashes of passwords.

Source: RFC 7914 (scrypt). Hashing takes tens of milliseconds and 32 MiB on purpose; callers must not run it on the
event loop.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from sluice.core import CachedFile, Home
from sluice.gateway.credentials.record_file import RecordFile
from sluice.gateway.credentials.session_store import revoke_sessions
from sluice.gateway.errors import UserFileError
from sluice.gateway.principal import is_name

MAX_USERS = 5000
MAX_USER_FILE_BYTES = 4 << 20
MIN_PASSWORD_CHARACTERS = 10
MAX_PASSWORD_BYTES = 1024

_COST = 1 << 15
_BLOCK = 8
_MEMORY_BYTES = 64 << 20


class PasswordHash(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An scrypt hash with its parameters; salt and digest in hexadecimal."""

    salt: str
    digest: str
    cost: int = _COST
    block: int = _BLOCK


class UserRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One user. ``changed_at`` is when the password was set; older sessions have ended."""

    name: str
    password: PasswordHash
    changed_at: float
    created_at: float
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class _UserFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    users: tuple[UserRecord, ...] = ()


class UserBook:
    """All users. Immutable: changes return a new book."""

    def __init__(self, records: Iterable[UserRecord] = ()) -> None:
        self._records: Mapping[str, UserRecord] = {record.name: record for record in records}

    @property
    def records(self) -> tuple[UserRecord, ...]:
        """All users, in the order they were added."""
        return tuple(self._records.values())

    @classmethod
    def decode(cls, data: bytes) -> UserBook:
        """Decode the file format; raises :class:`UserFileError`."""
        try:
            return cls(msgspec.json.decode(data, type=_UserFile).users)
        except msgspec.MsgspecError as error:
            raise UserFileError(f"the user file is damaged: {error}", "restore it from a backup") from error

    def encode(self) -> bytes:
        """Encode to the file format."""
        return msgspec.json.format(msgspec.json.encode(_UserFile(users=self.records)), indent=1)

    def get(self, name: str) -> UserRecord | None:
        """The user with this name, if there is one."""
        return self._records.get(name)

    def require(self, name: str) -> UserRecord:
        """The user with this name; raises :class:`UserFileError`."""
        record = self.get(name)
        if record is None:
            raise UserFileError(f"there is no user {name[:80]!r}", "see `sluice user list`")
        return record

    def put(self, record: UserRecord) -> UserBook:
        """A book with this user; replaces a user of the same name."""
        if record.name not in self._records and len(self._records) >= MAX_USERS:
            raise UserFileError(f"there are {MAX_USERS} users already", "use an identity provider: [gateway.oidc]")
        return UserBook({**self._records, record.name: record}.values())

    def remove(self, name: str) -> UserBook:
        """A book without this user; raises :class:`UserFileError` when there is none."""
        self.require(name)
        return UserBook(record for record in self.records if record.name != name)

    def check(self, name: str, password: str) -> UserRecord | None:
        """The user, when the password is correct. An unknown name takes as long as a wrong password."""
        record = self.get(name)
        right = matches(password, _NOBODY if record is None else record.password)
        return record if right else None


def hash_password(password: str) -> PasswordHash:
    """Hash a new password; raises :class:`UserFileError` when it is too short or too long."""
    if len(password) < MIN_PASSWORD_CHARACTERS or len(password.encode()) > MAX_PASSWORD_BYTES:
        raise UserFileError(
            f"a password has at least {MIN_PASSWORD_CHARACTERS} characters and at most {MAX_PASSWORD_BYTES} bytes"
        )
    salt = secrets.token_bytes(16)
    return PasswordHash(salt.hex(), _scrypt(password, salt, _COST, _BLOCK).hex())


def matches(password: str, stored: PasswordHash) -> bool:
    """Whether ``password`` is the one that was hashed."""
    if len(password.encode("utf-8", "replace")) > MAX_PASSWORD_BYTES:
        return False
    digest = _scrypt(password, bytes.fromhex(stored.salt), stored.cost, stored.block)
    return hmac.compare_digest(digest, bytes.fromhex(stored.digest))


def _scrypt(password: str, salt: bytes, cost: int, block: int) -> bytes:
    try:
        return hashlib.scrypt(
            password.encode("utf-8", "replace"), salt=salt, n=cost, r=block, p=1, maxmem=_MEMORY_BYTES, dklen=32
        )
    except ValueError as error:
        raise UserFileError(
            "the user file has a password hash with parameters that cannot be computed", "set the password again"
        ) from error


_NOBODY = PasswordHash("00" * 16, "00" * 32)


def user_file(home: Home) -> Path:
    """The path of the user file of ``home``'s cluster."""
    return home.gateway / "users.json"


def user_snapshot(home: Home) -> CachedFile[UserBook]:
    """The users for a long-running reader; without a file there are none."""
    return _file(home).cached()


def _file(home: Home) -> RecordFile[UserBook]:
    return RecordFile(user_file(home), UserBook, MAX_USER_FILE_BYTES, UserFileError)


class UserStore:
    """Reads and changes the user file of one cluster."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._file = _file(home)

    def read(self) -> UserBook:
        """Read the users from disk."""
        return self._file.read()

    def add(self, name: str, password: str, *, roles: tuple[str, ...], groups: tuple[str, ...]) -> UserRecord:
        """Add a user; raises :class:`UserFileError` when the name is invalid or taken."""
        if not is_name(name):
            raise UserFileError(f"{name[:80]!r} is not a valid user name", "use letters, digits, '.', '_', '@' and '-'")
        hashed, now = hash_password(password), time.time()
        with self._file.locked():
            book = self.read()
            if book.get(name) is not None:
                raise UserFileError(f"there is a user {name!r} already", "`sluice user passwd` sets a new password")
            record = UserRecord(name=name, password=hashed, changed_at=now, created_at=now, roles=roles, groups=groups)
            self._file.write(book.put(record))
        return record

    def set_password(self, name: str, password: str) -> UserRecord:
        """Set a new password; ends all sessions of this user."""
        hashed = hash_password(password)
        with self._file.locked():
            book = self.read()
            record = msgspec.structs.replace(book.require(name), password=hashed, changed_at=time.time())
            self._file.write(book.put(record))
        self._end_sessions(name)
        return record

    def remove(self, name: str) -> None:
        """Remove a user; ends all sessions of this user."""
        with self._file.locked():
            self._file.write(self.read().remove(name))
        self._end_sessions(name)

    def _end_sessions(self, name: str) -> None:
        # The auth service ends the sessions by itself. This revokes their access tokens, which Envoy verifies without
        # asking.
        revoke_sessions(self._home, lambda record: record.name == name and record.method == "user")
