"""Resources of one kind, encoded, with a version that follows from their content. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sluice.core.xds.messages import Message, encode

_VERSION_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one kind, encoded."""

    by_name: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}))
    version: str = ""

    @classmethod
    def of(cls, messages: Mapping[str, Message]) -> Resources:
        """Encode ``messages``; equal content gives an equal version."""
        encoded = {name: encode(messages[name]) for name in sorted(messages)}
        digest = hashlib.sha256()
        for name, data in encoded.items():
            for part in (name.encode(), data):
                digest.update(len(part).to_bytes(8, "big"))
                digest.update(part)
        return cls(MappingProxyType(encoded), digest.hexdigest()[:_VERSION_CHARACTERS])
