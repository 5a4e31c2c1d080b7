"""Checks names from outside before they become parts of paths."""

from __future__ import annotations

import re

from sluice.runtime.blob.errors import InvalidBlobName

MAX_FILE_NAME_CHARACTERS = 200
"""Longest file name of a blob."""

JOB_ID = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"[^,/\\]+")


def check_job_id(job_id: str) -> str:
    """Return ``job_id`` if it is 32 lower-case hexadecimal digits; else raise :class:`InvalidBlobName`."""
    if not JOB_ID.fullmatch(job_id):
        raise InvalidBlobName(f"{job_id[:80]!r} is not a job id")
    return job_id


def check_digest(sha256: str) -> str:
    """Return ``sha256`` if it is a lower-case SHA-256 digest; else raise :class:`InvalidBlobName`."""
    if not _SHA256.fullmatch(sha256):
        raise InvalidBlobName(f"{sha256[:80]!r} is not a SHA-256 digest")
    return sha256


def check_file_name(name: str) -> str:
    """Return ``name`` if it is a plain file name without folders; else raise :class:`InvalidBlobName`."""
    if not _FILE_NAME.fullmatch(name) or not name.isprintable() or name.startswith("."):
        raise InvalidBlobName(f"{name[:80]!r} is not a plain file name", "no folders, no leading dot, no comma")
    if len(name) > MAX_FILE_NAME_CHARACTERS:
        raise InvalidBlobName(f"a file name has {len(name)} characters", f"use at most {MAX_FILE_NAME_CHARACTERS}")
    return name
