"""Styles and scripts, served under names derived from their content, so that browsers may cache them for ever.

They are public, and the sign-in page needs them: the auth service serves them to everybody.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PREFIX = "/auth/static/"
"""Path prefix of the assets; the gateway forwards it to the auth service without authentication."""
CACHE_FOR_EVER = "public, max-age=31536000, immutable"

_DIRECTORY = Path(__file__).parent / "static"
_TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Asset:
    """One file: its path at the gateway, and its content, plain and compressed."""

    path: str
    content_type: str
    content: bytes
    compressed: bytes

    def answer(self, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
        """The body and the headers for a client that accepts these encodings."""
        headers = {
            "content-type": self.content_type,
            "cache-control": CACHE_FOR_EVER,
            "vary": "accept-encoding",
            "x-content-type-options": "nosniff",
        }
        if "gzip" in accept_encoding.lower():
            return self.compressed, {**headers, "content-encoding": "gzip"}
        return self.content, headers


@cache
def assets() -> Mapping[str, Asset]:
    """All assets by file name."""
    return {file.name: _read(file) for file in sorted(_DIRECTORY.iterdir()) if file.suffix in _TYPES}


@cache
def _by_path() -> Mapping[str, Asset]:
    return {asset.path: asset for asset in assets().values()}


def find_asset(path: str) -> Asset | None:
    """The asset at ``path`` of the gateway."""
    return _by_path().get(path)


def asset_path(name: str) -> str:
    """The path of the file ``name`` for links in pages."""
    return assets()[name].path


def _read(file: Path) -> Asset:
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:_DIGEST_CHARACTERS]
    stem = file.name.removesuffix(file.suffix)
    # Without a time in it, so that every process makes the same bytes.
    compressed = gzip.compress(content, 9, mtime=0)
    return Asset(f"{PREFIX}{stem}-{digest}{file.suffix}", _TYPES[file.suffix], content, compressed)
