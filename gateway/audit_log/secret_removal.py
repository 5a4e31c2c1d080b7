"""Removes secrets, invalid Unicode and overlong text from records. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from sluice.core import ChainState
from sluice.gateway.audit_log.chain import AuditRecord, seal
from sluice.gateway.credentials import redact

MAX_DETAILS = 16
MAX_NAME_CHARACTERS = 64
MAX_GROUPS = 64
MAX_GROUP_CHARACTERS = 128
"""The same limits as for the groups of a principal."""
MAX_VALUE_CHARACTERS = 512
MAX_FIELD_CHARACTERS = 2048

_SUSPICIOUS = re.compile(r"sl[cs]_|eyJ|PRIVATE KEY|[Bb]earer |[\ud800-\udfff]")
_SUSPICIOUS_BYTES = (b"slc_", b"sls_", b"eyJ", b"PRIVATE KEY", b"earer ")
_JWT = re.compile(r"eyJ[A-Za-z0-9_-]{4,}(\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?)?")
"""Also matches text without a dot, which is no JWT, so that no character is scanned again from each ``eyJ`` in it."""
_BEARER = re.compile(r"([Bb]earer )\S+")
_BEARER_TEXT = re.compile(r'([Bb]earer )[^\s"]+')
_PRIVATE_KEY_TEXT = re.compile(r'-----BEGIN [A-Z ]*PRIVATE KEY-----[^"]*')
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*", re.DOTALL)

_TEXT_FIELDS = tuple(
    name
    for name in AuditRecord.__struct_fields__
    if name
    not in {"event", "sequence", "time", "previous", "decision", "status", "detail", "roles", "groups", "position"}
)


def clean(text: str, limit: int = MAX_FIELD_CHARACTERS) -> str:
    """``text`` without secrets and lone surrogates, truncated to ``limit`` characters."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if not _SUSPICIOUS.search(text):
        return text
    text = text.encode("utf-8", errors="backslashreplace").decode()
    text = _without_jwts(redact(text))
    return _PRIVATE_KEY.sub("(private key)", _BEARER.sub(r"\1(secret)", text))[:limit]


def remove_secrets(lines: bytes) -> bytes:
    """``lines`` of an access log with suspected secrets replaced. A single search skips lines without any."""
    if not any(mark in lines for mark in _SUSPICIOUS_BYTES):
        return lines
    return b"\n".join(
        _clean_line(line) if any(mark in line for mark in _SUSPICIOUS_BYTES) else line for line in lines.split(b"\n")
    )


def _clean_line(line: bytes) -> bytes:
    """Remove secrets from a line. JSON stays valid: a match never includes the closing quote."""
    text = _without_jwts(redact(line.decode(errors="surrogateescape")))
    text = _PRIVATE_KEY_TEXT.sub("(private key)", _BEARER_TEXT.sub(r"\1(secret)", text))
    return text.encode(errors="surrogateescape")


def _without_jwts(text: str) -> str:
    return _JWT.sub(lambda found: "(jwt)" if found[1] else found[0], text)


def seal_without_secrets(record: AuditRecord, state: ChainState) -> tuple[bytes, ChainState]:
    """Append ``record`` to the chain. Secrets are removed only if a quick check of its line finds any."""
    try:
        line, after = seal(record, state)
    except UnicodeEncodeError:
        return seal(record_without_secrets(record), state)
    if len(line) <= MAX_FIELD_CHARACTERS and not any(mark in line for mark in _SUSPICIOUS_BYTES):
        return line, after
    return seal(record_without_secrets(record), state)


def record_without_secrets(record: AuditRecord) -> AuditRecord:
    """``record`` with all texts cleaned; the same object if nothing has to change."""
    changed: dict[str, object] = {}
    for name in _TEXT_FIELDS:
        value = getattr(record, name)
        if value and isinstance(value, str) and (better := clean(value)) != value:
            changed[name] = better
    if isinstance(record.detail, dict):
        changed["detail"] = detail_without_secrets(record.detail)
    if isinstance(record.roles, tuple):
        changed["roles"] = tuple(clean(role, MAX_NAME_CHARACTERS) for role in record.roles[:MAX_DETAILS])
    if isinstance(record.groups, tuple):
        changed["groups"] = tuple(clean(group, MAX_GROUP_CHARACTERS) for group in record.groups[:MAX_GROUPS])
    return msgspec.structs.replace(record, **changed) if changed else record


def detail_without_secrets(detail: Mapping[str, object] | str) -> dict[str, str] | msgspec.UnsetType:
    """The facts of an act as short, clean texts."""
    facts = {"text": detail} if isinstance(detail, str) else detail
    kept = {
        clean(str(name), MAX_NAME_CHARACTERS): clean(str(value), MAX_VALUE_CHARACTERS)
        for name, value in list(facts.items())[:MAX_DETAILS]
        if value not in {"", None}
    }
    return kept or msgspec.UNSET
