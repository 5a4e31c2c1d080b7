"""Keys, tokens and settings of the cluster: read a few bytes of each."""

from __future__ import annotations

from ..attempt import Group, Run, add
from ..reading import read_any
from ..world import PATTERNS

KEYS = Group(
    "KEY",
    severity="critical",
    cwe=(522, 732),
    expected="no such file in sight, or no right to open it",
    remedy='run jobs with [isolation] level = "sandbox", so that a job sees nothing of the home but its own directory',
)

_IDENTITY = ("key.pem", "identity.p12", "identity.p12.pass")


def _identity(*roles: str) -> tuple[str, ...]:
    return tuple(f"pki/identities/{role}/*/{name}" for role in roles for name in _IDENTITY)


_ROWS: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("KEY-01", "internal authority's key", "the key of the internal authority", "critical",
     ("pki/authorities/internal/key.pem",)),
    ("KEY-02", "edge authority's key", "the key of the edge authority", "critical", ("pki/authorities/edge/key.pem",)),
    ("KEY-03", "root authority's key", "the key of the root authority", "critical", ("pki/authorities/root/key.pem",)),
    ("KEY-04", "JobManager's key", "the key of a JobManager", "critical", _identity("jobmanager")),
    ("KEY-05", "TaskManager's key", "the key of a TaskManager", "critical", _identity("taskmanager")),
    ("KEY-06", "auth service's key", "the key of the auth service", "critical", _identity("auth")),
    ("KEY-07", "gateway's key", "a key of the gateway", "critical", _identity("gateway", "edge")),
    ("KEY-08", "shuffle service's key", "the key of the shuffle service", "critical",
     _identity("shuffle-manager", "shuffle-worker")),
    ("KEY-09", "CA's key", "the key of the online authority's own identity", "critical", _identity("ca")),
    ("KEY-10", "assertion key", "the keys with which the gateway signs assertions for REST", "critical",
     ("gateway/pass-keys/*",)),
    ("KEY-11", "token file", "the file of API tokens", "high", ("gateway/tokens.json",)),
    ("KEY-12", "users", "the users and their sessions", "high", ("gateway/users.json", "gateway/sessions.json")),
    ("KEY-13", "API token", "an API token of somebody else", "critical", ("token",)),
    ("KEY-14", "audit log's key", "the key that signs the audit log", "high", ("gateway/audit/signing-key.pem",)),
    ("KEY-15", "audit log", "the audit log and the access log", "medium",
     ("gateway/audit/*.jsonl", "access/access.jsonl")),
    ("KEY-16", "shuffle secret", "the secret of the shuffle service", "critical", ("ha/pointers/meta/shuffle-secret",)),
    ("KEY-17", "join token", "hashes of join tokens and the online authority's ledger", "medium",
     ("pki/ca/tokens", "pki/ca/ledger.jsonl")),
    ("KEY-18", "policy and keys of REST", "the gateway's policy and the keys that REST believes", "low",
     ("gateway/policy.toml", "gateway/assertion-keys.json")),
    ("KEY-19", "configuration", "the cluster's configuration", "medium", ("sluice.toml",)),
    ("KEY-20", "process records", "records of the cluster's processes and addresses", "low",
     ("run/cluster.json", "run/endpoints/*.json")),
    ("KEY-21", "logs of the cluster", "logs of the cluster's processes", "medium", ("log/*.log",)),
    ("KEY-22", "election", "the election's and the store's files", "medium", ("ha/leader.json", "ha/storage/identity")),
)  # fmt: skip


def _reading(kind: str) -> Run:
    return lambda world: read_any(world, kind)


for _id, _kind, _what, _severity, _patterns in _ROWS:
    PATTERNS[_kind] = _patterns
    add(_id, f"read {_what}", KEYS, _reading(_kind), severity=_severity)
