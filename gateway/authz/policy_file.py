"""Reads the policy file ``policy.toml`` into a :class:`~sluice.gateway.authz.policy.Policy`.

The default policy, ``default_policy.toml`` beside this module, documents the format. Every error names the line and,
for a misspelt name, the most similar existing name.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sluice.core import FileStamp, Home, SluiceError, StoreError, file_stamp, read_bounded
from sluice.gateway.authz.audiences import AudienceTable, read_audiences
from sluice.gateway.authz.egress_rules import EgressTable, read_rules
from sluice.gateway.authz.operations import OWNED_OPERATIONS, is_pattern, matches
from sluice.gateway.authz.policy import Policy, RoleRules
from sluice.gateway.authz.rule_tables import RuleTableError
from sluice.gateway.errors import PolicyError
from sluice.gateway.principal import MAX_ROLES, is_group, is_name, is_role

_LOG = logging.getLogger(__name__)

DEFAULT_POLICY = Path(__file__).with_name("default_policy.toml")
MAX_POLICY_BYTES = 1 << 20
MAX_POLICY_ROLES = 100

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class _Role(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    description: str = ""
    includes: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    allow_own: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    roles: dict[str, _Role]
    default_roles: tuple[str, ...] = ()
    groups: dict[str, tuple[str, ...]] = {}
    users: dict[str, tuple[str, ...]] = {}
    egress: tuple[EgressTable, ...] = ()
    audiences: tuple[AudienceTable, ...] = ()


def policy_file(home: Home, configured: str = "") -> Path:
    """The policy file of ``home``: the configured path, or ``policy.toml`` in the home, or else the default policy."""
    own = Path(configured) if configured else home.gateway / "policy.toml"
    return own if configured or own.exists() else DEFAULT_POLICY


def read_policy(path: Path, operations: Iterable[str]) -> Policy:
    """Read the policy in ``path`` for ``operations``. Raises :class:`PolicyError` or an error of reading the file."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise PolicyError(f"cannot read {path}: {error.strerror}", "see `sluice policy show --default`") from error
    if mode & 0o022:
        raise PolicyError(f"{path} has mode {mode:04o}: others can change who may do what", f"chmod go-w {path}")
    # The default policy is tested against the routes of its own version. Where it is used, there may be fewer.
    return parse(read_bounded(path, MAX_POLICY_BYTES), operations, str(path), strict=path != DEFAULT_POLICY)


def parse(data: bytes, operations: Iterable[str], where: str = "policy", *, strict: bool = True) -> Policy:
    """Parse a policy. Raises :class:`PolicyError` with ``where`` and the line.

    If not ``strict``, unknown operations are ignored.
    """
    return _Reader(data, frozenset(operations), where, strict=strict).read()


class PolicyFile:
    """The policy of a long-running process. An invalid new file is reported, and the previous policy stays in use."""

    def __init__(self, locate: Callable[[], Path], operations: Callable[[], frozenset[str]]) -> None:
        self._locate = locate
        self._operations = operations
        self._stamp: tuple[Path, FileStamp | None, frozenset[str]] | None = None
        self._policy: Policy | None = None
        self.rejected = ""
        """Why the current file is not used; empty if it is used."""

    def get(self) -> Policy:
        """The current policy. Raises ``SluiceError`` only if there has never been a valid one."""
        path, operations = self._locate(), self._operations()
        try:
            stamp = (path, file_stamp(path), operations)
        except StoreError:
            stamp = (path, None, operations)
        if self._policy is None or stamp != self._stamp:
            try:
                self._policy = read_policy(path, operations)
                self.rejected = ""
            except SluiceError as error:
                if self._policy is None:
                    raise
                self.rejected = str(error)
                _LOG.error("the new policy is invalid, the previous one stays in use: %s", error)
            self._stamp = stamp
        return self._policy


class _Reader:
    """Reads and validates one policy file."""

    def __init__(self, data: bytes, operations: frozenset[str], where: str, *, strict: bool) -> None:
        self._strict = strict
        self._where = where
        self._operations = operations
        self._resolved: dict[str, RoleRules] = {}
        try:
            self._text = data.decode()
            self._document = tomllib.loads(self._text)
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise PolicyError(f"{where} is not valid TOML: {error}") from error

    def read(self) -> Policy:
        self._check_keys(self._document, _File, "")
        for name, role in self._mapping("roles").items():
            if isinstance(role, dict):
                self._check_keys(role, _Role, f"roles.{name}")
                self._convert(role, _Role, "roles", name)
        file = self._convert(self._document, _File)
        if file.version != 1:
            raise self._error(f"version {file.version} is not known", "version", remedy="version = 1")
        if not 0 < len(file.roles) <= MAX_POLICY_ROLES:
            raise self._error(f"there are {len(file.roles)} roles", "roles", remedy=f"1 to {MAX_POLICY_ROLES}")
        for name in file.roles:
            if not is_role(name):
                raise self._error(f"{name!r} cannot name a role", "roles", name, remedy="lower-case letters, digits, -")
        self._check_bindings(file)
        rules = {name: self._rules(name, file.roles, ()) for name in file.roles}
        try:
            egress = read_rules(file.egress, file.roles)
        except RuleTableError as error:
            raise self._error(error.what, "[egress]", error.value, remedy=error.remedy) from error
        try:
            audiences = read_audiences(file.audiences, file.roles)
        except RuleTableError as error:
            raise self._error(error.what, "[audiences]", error.value, remedy=error.remedy) from error
        return Policy(
            self._operations,
            rules,
            file.groups,
            file.users,
            file.default_roles,
            egress,
            audiences,
            hashlib.sha256(self._text.encode()).hexdigest(),
        )

    def _convert(self, value: object, struct: type[_Struct], *place: str) -> _Struct:
        try:
            return msgspec.convert(value, struct)
        except msgspec.ValidationError as error:
            what, _, key = str(error).partition(" - at `$.")
            raise self._error(what, *place, *key.strip("`").split("[")[:1]) from error

    def _check_bindings(self, file: _File) -> None:
        self._check_roles(file.default_roles, file.roles, "default_roles")
        for table, bound, valid in (("groups", file.groups, is_group), ("users", file.users, is_name)):
            for name, roles in bound.items():
                if not valid(name):
                    raise self._error(f"{name!r} cannot be one of {table}", table, name)
                self._check_roles(roles, file.roles, table, name)

    def _check_roles(self, names: tuple[str, ...], roles: Mapping[str, _Role], *place: str) -> None:
        if len(names) > MAX_ROLES:
            raise self._error(f"{len(names)} roles are more than {MAX_ROLES}", *place)
        for name in names:
            if name not in roles:
                raise self._error(f"there is no role {name!r}", *place, name, remedy=_nearest(name, roles))

    def _rules(self, name: str, roles: Mapping[str, _Role], path: tuple[str, ...]) -> RoleRules:
        if name in self._resolved:
            return self._resolved[name]
        role = roles[name]
        if name in path:
            raise self._error(f"role {name!r} includes itself", "roles", name, "includes")
        self._check_roles(role.includes, roles, "roles", name, "includes")
        rules = RoleRules(
            name,
            self._resolve(role.allow, name, "allow"),
            self._resolve_owned(role.allow_own, name),
            self._resolve(role.deny, name, "deny"),
            role.description,
        )
        for included in role.includes:
            more = self._rules(included, roles, (*path, name))
            rules = RoleRules(
                name,
                rules.allow | more.allow,
                rules.allow_own | more.allow_own,
                rules.deny | more.deny,
                role.description,
            )
        self._resolved[name] = rules
        return rules

    def _resolve_owned(self, patterns: tuple[str, ...], role: str) -> frozenset[str]:
        found = self._resolve(patterns, role, "allow_own")
        for operation in sorted(found - OWNED_OPERATIONS):
            remedy = f"only {', '.join(sorted(OWNED_OPERATIONS))} can be allowed for one's own jobs"
            raise self._error(f"{operation!r} has no owner to compare with", "roles", role, "allow_own", remedy=remedy)
        return found

    def _resolve(self, patterns: tuple[str, ...], role: str, key: str) -> frozenset[str]:
        found: set[str] = set()
        for pattern in patterns:
            covered = {each for each in self._operations if is_pattern(pattern) and matches(pattern, each)}
            if not covered and self._strict:
                what = f"{pattern!r} is not an operation" if "*" not in pattern else f"no operation matches {pattern!r}"
                raise self._error(what, "roles", role, key, pattern, remedy=_nearest(pattern, self._operations))
            found |= covered
        return frozenset(found)

    def _check_keys(self, table: Mapping[str, Any], struct: type[msgspec.Struct], place: str) -> None:
        for key in table:
            if key not in struct.__struct_fields__:
                parts = [part for part in place.split(".") if part]
                raise self._error(
                    f"unknown key {key!r}" + (f" in [{place}]" if place else ""),
                    *parts,
                    key,
                    remedy=_nearest(key, struct.__struct_fields__),
                )

    def _mapping(self, key: str) -> Mapping[str, Any]:
        value = self._document.get(key)
        return value if isinstance(value, dict) else {}

    def _error(self, what: str, *place: str, remedy: str = "") -> PolicyError:
        line = _line_of(self._text, place)
        return PolicyError(f"{self._where}{f', line {line}' if line else ''}: {what}", remedy)


def _line_of(text: str, place: tuple[str, ...]) -> int:
    """The line of ``place`` (table, key, value), found by searching for its words; 0 if it is not found."""
    lines = text.splitlines()
    found, start = 0, 0
    for depth, part in enumerate(place):
        word = re.compile(rf"(?<![\w.*-]){re.escape(part)}(?![\w*-])")
        header = ".".join(place[: depth + 1])
        for number in range(start, len(lines)):
            line = lines[number].strip()
            if line.startswith("#"):
                continue
            if (line.startswith("[") and line.strip("[] ").replace('"', "") == header) or word.search(line):
                found, start = number + 1, number
                break
    return found


def _nearest(word: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
