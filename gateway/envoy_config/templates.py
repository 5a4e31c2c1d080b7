"""Configuration sources: JSON with comments, in which every ``{"$value": name}`` is replaced.

Pure except :func:`load_source`. Values replace whole JSON values, never parts of a string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sluice.core import read_bounded
from sluice.gateway.errors import BootstrapError

DIRECTORY = Path(__file__).with_name("sources")
"""Package data; in a checkout, symbolic links into the folder ``envoy``."""


def load_source(path: Path) -> object:
    """Read a source: JSON in which lines starting with ``//`` are comments."""
    if not path.is_file():
        raise BootstrapError(f"{path} does not exist", "install sluice again")
    lines = read_bounded(path).decode().splitlines()
    try:
        return json.loads("\n".join("" if line.lstrip().startswith("//") else line for line in lines))
    except ValueError as error:
        raise BootstrapError(f"{path} is not JSON with whole-line comments: {error}") from error


def fill(source: object, values: Mapping[str, object]) -> object:
    """Insert ``values`` into the source; raises :class:`BootstrapError` for an unknown or an unused value."""
    used: set[str] = set()
    filled = _substitute(source, values, used)
    if unused := sorted(values.keys() - used):
        raise BootstrapError(f"the source leaves out {', '.join(unused)}")
    return filled


def _substitute(node: object, values: Mapping[str, object], used: set[str]) -> object:
    if isinstance(node, list):
        return [_substitute(item, values, used) for item in node]
    if not isinstance(node, dict):
        return node
    if "$value" not in node:
        return {key: _substitute(item, values, used) for key, item in node.items()}
    name = node["$value"]
    if len(node) != 1 or not isinstance(name, str) or name not in values:
        raise BootstrapError(f"the source refers to the unknown value {node!r}")
    used.add(name)
    return values[name]
