"""The attempts themselves, a module for each kind."""

from __future__ import annotations

import importlib

MODULES = (
    "secrets",
    "jobs",
    "processes",
    "sockets",
    "writing",
    "escape",
    "privileges",
    "egress",
    "jvm",
    "links",
    "usage",
    "sharing",
    "forging",
)
"""The modules, in the order of running."""


def load() -> None:
    """Define every attempt; further calls do nothing."""
    for name in MODULES:
        importlib.import_module(f".{name}", __package__)
