"""Which files of a home belong into a backup, and which are created again after a restore."""

from __future__ import annotations

import re

from sluice.cli.backup.errors import BackupDamaged

MAX_PATH_CHARACTERS = 255

INCLUDED = (
    r"sluice\.toml",
    r"pki/authorities/[a-z]+/(cert\.pem|key\.(pem|uri))",
    r"pki/rotation/state\.json",
    r"pki/rotation/authorities/[a-z]+/(cert\.pem|key\.(pem|uri))",
    r"pki/retired/NAME(/NAME)*",
    r"pki/pending/[a-z]+\.key\.(pem|uri)",
    r"pki/trust/[a-z]+\.pem",
    r"pki/jwt/NAME",
    r"pki/revocation/[a-z]+-[0-9a-f]+/(revoked\.json|crl\.pem)",
    r"pki/ca/(ledger\.jsonl|superseded\.json|followers(-NAME)?\.json)",
    r"pki/ca/notes/[0-9a-f]+\.(jsonl|damaged)",
    r"pki/(outside\.json|audit-identities\.jsonl)",
    r"gateway/(tokens\.json|token-use\.json|users\.json|revocations\.jsonl|policy\.toml)",
    r"(envoys/NAME/)?gateway/audit-export/NAME",
    r"(envoys/NAME/)?gateway/audit/(current\.jsonl|checkpoint\.json|signing-key\.(pem|uri)|verification-key\.pem)",
    r"(envoys/NAME/)?gateway/audit/audit-[0-9]+-[0-9]+\.jsonl(\.gz)?",
    r"(envoys/NAME/)?gateway/audit/traffic-[0-9]+\.jsonl(\.gz)?",
    r"gateway/acme/accounts/[0-9a-f]{16}/(key\.pem|account\.json)",
    r"ha/(pointers|storage)/NAME(/NAME)*",
    r"secret-keys/[0-9a-f]{16}\.key",
)
"""Files of a home that are restored unchanged."""

MADE_ANEW = (
    r"pki/identities/.*",
    r"pki/ca/acme\.sqlite(-journal)?",
    r"pki/(ca/tokens|authorities|identities|revocation|rotation)/.*",
    r"gateway/(sessions\.json|shared-store(-state)?\.json|shared-store-pending|shared\.sqlite(-wal|-shm)?|assertion-keys\.json|pass-keys/.*|envoy/.*|nginx/.*)",
    r"(envoys/NAME/)?gateway/audit/(lock|checkpoint\.lock)",
    r"envoys/NAME/(run|log|access)/.*",
    r"gateway/acme/(state\.json|challenges\.json|pending/.*|live/.*|certificates/.*)",
    r"ha/storage/history/.*",
    r"ha/(leader\.lock|leader\.json|epoch|origin|standbys/.*)",
    r"(run|log|work|access|blobs|shuffle|shuffle-ha|audit|zookeeper)/.*",
    r"(checkpoints|savepoints)/.*",
    r"token(\.gateway)?",
)
"""Files of a home that are not in a backup: of running processes, temporary, or the user's own."""


def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{each})" for each in patterns).replace("NAME", "[A-Za-z0-9][A-Za-z0-9._-]*"))


_INCLUDED, _MADE_ANEW = _compiled(INCLUDED), _compiled(MADE_ANEW)


def is_included(path: str) -> bool:
    """Whether a file at this path below a home belongs into its backup."""
    return len(path) <= MAX_PATH_CHARACTERS and _INCLUDED.fullmatch(path) is not None


def is_known(path: str) -> bool:
    """Whether a rule says if this file belongs into a backup."""
    return is_included(path) or _MADE_ANEW.fullmatch(path) is not None


def check_path(path: str) -> str:
    """Return ``path`` if a backup may have a file there; else raise :class:`BackupDamaged`."""
    if not is_included(path):
        raise BackupDamaged(f"the backup has a file {path[:200]!r}, which is not part of a home", "it is not restored")
    return path
