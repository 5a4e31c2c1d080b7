"""The environment that the processes of a cluster inherit from ``sluice up``."""

from __future__ import annotations

import os

from sluice.cli.config import EMBEDDED, FLAG, Configuration
from sluice.core import Home
from sluice.gateway.audit_log import SIGNING_REFERENCE, audit_directory
from sluice.pki.tls import no_tickets_environment

TOKEN_ENVIRONMENT = ("CREDENTIALS_DIRECTORY", "SOFTHSM2_CONF", "TPM2_PKCS11_STORE", "YUBIHSM_PKCS11_CONF")
"""Variables with paths: the token's PIN for a signing process, and settings of PKCS#11 modules."""
PASSED_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "JAVA_HOME", "XDG_CACHE_HOME", "USER")
"""Variables that all processes inherit; everything else (tokens, proxies, Python settings) is dropped."""
AUDIT_LOG_WRITERS = frozenset({"auth", "envoy", "jobmanager"})
"""Processes that sign the audit log."""


def common_environment(java_home: str) -> dict[str, str]:
    """The environment of every process."""
    environment = _those(PASSED_ENVIRONMENT)
    environment["JAVA_HOME"] = java_home
    return environment | {key: value for key, value in os.environ.items() if key.startswith("SLUICE__")}


def member_environment(role: str, home: Home, configuration: Configuration, java_home: str) -> dict[str, str]:
    """The environment of a process of ``role``, the first word of its ``sluice run``."""
    environment = common_environment(java_home) | _flag_environment(configuration)
    if role == "shuffle-worker":
        environment |= no_tickets_environment()
    if _signs_in_token(role, home):
        environment |= _those(TOKEN_ENVIRONMENT)
    return environment


def authority_environment(configuration: Configuration, number: int) -> dict[str, str]:
    """Additions for the authority with this number, counted from 1: its own ports if they are fixed."""
    own = configuration.ca.of(number)
    return {"SLUICE__CA__PORT": str(own.port), "SLUICE__CA__ENROLMENT_PORT": str(own.enrolment_port)}


def _those(names: tuple[str, ...]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _signs_in_token(role: str, home: Home) -> bool:
    return role == "ca" or (role in AUDIT_LOG_WRITERS and (audit_directory(home) / SIGNING_REFERENCE).exists())


def _flag_environment(configuration: Configuration) -> dict[str, str]:
    """Pass options and decisions of ``sluice up`` to the children as variables."""
    values = configuration.values()
    return {
        f"SLUICE__{name.replace('.', '__', 1).upper()}": str(values[name])
        for name, origin in configuration.origins.items()
        if origin in {FLAG, EMBEDDED}
    }
