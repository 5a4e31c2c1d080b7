"""OpenSSL's start-up configuration: the only way to disable session tickets in the cryptography wheel's OpenSSL.

A TLS 1.3 server sends two tickets after each handshake unless ``SSL_CTX_set_num_tickets`` changes that, but the wheel's
bindings lack this function. The command ``NumTickets`` of OpenSSL's configuration does the same (see SSL_CONF_cmd(3))
for all contexts of a process. It is read once, when the import of ``cryptography`` initialises the library. So it must
be in the environment when the process starts.

Imports nothing but the standard library.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "OPENSSL_CONF"
"""The environment variable with OpenSSL's configuration file."""
NO_TICKETS = Path(__file__).with_name("openssl.cnf")


def no_tickets_environment() -> dict[str, str]:
    """Additions to the environment of a process that must send no session tickets."""
    return {VARIABLE: str(NO_TICKETS)}


def restart_without_tickets() -> None:
    """Replace this process by one that sends no session tickets, unless it is one already.

    It keeps its id, its arguments and its open files. A configuration file set by somebody else stays: servers then
    have to check its effect (:func:`sluice.pki.tls.bulk.serving_engine`).
    """
    if VARIABLE not in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        argv = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, argv, {**os.environ, **no_tickets_environment()})  # noqa: S606  no shell is wanted
