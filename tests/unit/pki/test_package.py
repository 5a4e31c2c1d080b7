"""Rules that hold for the whole package."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

import sluice.core
import sluice.pki
from sluice.core.errors import SluiceError

MODULES = [
    module.name
    for package in (sluice.core, sluice.pki)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_documented_and_errors_derive_from_sluice_error(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    for public, value in vars(module).items():
        if public.startswith("_") or getattr(value, "__module__", None) != name:
            continue
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, SluiceError)
        if callable(value):
            assert value.__doc__, f"{name}.{public} has no docstring"
