"""The audit as a test suite against any live cluster: ``pytest tests/audit --cluster HOME_OR_URL``.

``HOME_OR_URL`` is the home of a local cluster, the https:// or http:// address of a gateway, or a target file (TOML,
see docs/howto/audit.md). Without it, no test is collected here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from sluice.audit.runner import applicable
from sluice.audit.subject import Options
from sluice.cli.audit.commands import subjects_of

_OPENED = pytest.StashKey[contextlib.ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options ``--cluster`` and ``--patience``."""
    group = parser.getgroup("audit")
    group.addoption("--cluster", metavar="HOME_OR_URL", help="the cluster to audit: home, URL, or target file")
    group.addoption("--patience", type=float, default=2.0, help="seconds within which a client must be refused")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the live tests unless a cluster is given."""
    if collection_path.name == "test_live.py" and not config.getoption("--cluster", None):
        return True
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create a test for each check on each listener, named after both."""
    if "check" not in metafunc.fixturenames:
        return
    config = metafunc.config
    opened = config.stash.setdefault(_OPENED, contextlib.ExitStack())
    options = Options(patience=config.getoption("--patience"))
    subjects = opened.enter_context(subjects_of(config.getoption("--cluster"), options))
    pairs = sorted(applicable(subjects), key=lambda pair: pair[1].last)
    names = [f"{subject.listener.name}: {check.title} ({check.id})" for subject, check in pairs]
    metafunc.parametrize(("subject", "check"), pairs, ids=names)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the subjects; this revokes the credentials that were issued for the audit."""
    config.stash.get(_OPENED, contextlib.ExitStack()).close()
