"""OpenSSL's settings at the start of a process, and their effect.

Each test runs in a process of its own, because OpenSSL reads the settings once.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sluice.pki.tls.openssl_settings import NO_TICKETS, VARIABLE, no_tickets_environment

LOOK = "from sluice.pki.tls.bulk import serving_engine; print(serving_engine())"
RESTART = (
    "import os; from sluice.pki.tls.openssl_settings import restart_without_tickets; first = os.getpid();"
    "restart_without_tickets(); import sys; from sluice.pki.tls.session_tickets import sends_tickets;"
    "print(os.environ['OPENSSL_CONF'], sends_tickets(), sys.argv[1:])"
)


def run(program: str, *arguments: str, **settings: str) -> str:
    """Return the output of ``program``."""
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE} | settings
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("settings", "engine"),
    [
        pytest.param(no_tickets_environment(), "native", id="told to send none"),
        pytest.param({}, "standard", id="told nothing"),
        pytest.param({VARIABLE: "/dev/null"}, "standard", id="a file of the operator's that says nothing of it"),
    ],
)
def test_the_native_engine_serves_only_if_openssl_sends_no_session_tickets(
    settings: dict[str, str], engine: str
) -> None:
    assert run(LOOK, **settings) == engine


def test_a_process_restarts_without_session_tickets_and_with_its_arguments() -> None:
    assert run(RESTART, "a b", "--c") == f"{NO_TICKETS} False ['a b', '--c']"
