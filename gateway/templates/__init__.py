"""HTML templates of the pages that the auth service renders."""

from __future__ import annotations

from pathlib import Path

TEMPLATES = Path(__file__).parent
