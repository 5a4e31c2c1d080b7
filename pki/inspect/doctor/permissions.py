"""Checks permissions: keys are readable by their owner only, trust anchors are writable by their owner only.

Decisions only.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from sluice.pki.inspect.doctor.facts import FileFact
from sluice.pki.inspect.findings import Finding, Severity

_OTHERS, _OTHERS_WRITE = 0o077, 0o022


def permission_findings(files: Sequence[FileFact], owner: int) -> list[Finding]:
    """Modes and owners of ``files``; ``owner`` is the user id of the home."""
    return [finding for each in files if (finding := _judge(each, owner)) is not None]


def leftover_findings(leftovers: Sequence[Path]) -> list[Finding]:
    """Findings about files of dead writers; no writer holds the lock of their directories."""
    return [
        Finding.note(
            "leftover",
            str(path),
            "an interrupted writer left this",
            why="it is incomplete, perhaps a key, and nobody reads it; the next writer there removes it",
            remedy=f"rm -r {shlex.quote(str(path))}",
        )
        for path in leftovers
    ]


def _judge(file: FileFact, owner: int) -> Finding | None:
    path, mode = str(file.path), file.permissions
    quoted = shlex.quote(path)
    if file.uid != owner:
        return Finding.error(
            "foreign-owner",
            path,
            f"it belongs to user id {file.uid}, and the home to {owner}",
            why="that user can replace it, and processes refuse what they cannot read",
            remedy=f"chown {owner} {quoted}",
        )
    if file.is_directory:
        if not mode & _OTHERS:
            return None
        writable = bool(mode & _OTHERS_WRITE)
        return Finding(
            severity=Severity.ERROR if writable else Severity.WARNING,
            code="directory-open",
            path=path,
            what=f"the directory has mode {mode:04o}: others can {'write' if writable else 'list'} it",
            why="others could put their own keys and anchors in place" if writable else "names and sizes are shown",
            remedy=f"chmod 700 {quoted}",
        )
    if file.secret and mode & _OTHERS:
        return Finding.error(
            "key-readable",
            path,
            f"the file has mode {mode:04o}: others can read this secret",
            why="whoever read it can impersonate its holder; assume that somebody did",
            remedy=f"chmod 600 {quoted}; then replace it: sluice pki issue --force",
        )
    if mode & _OTHERS_WRITE:
        return Finding.error(
            "file-writable",
            path,
            f"the file has mode {mode:04o}: others can write it",
            why="others decide who is trusted",
            remedy=f"chmod 644 {quoted}",
        )
    return None
