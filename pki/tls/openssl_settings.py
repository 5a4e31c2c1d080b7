"""OpenSSL's start-up configuration: the only way to disable session tickets in the cryptography wheel's OpenSSL.

A server of TLS 1.3 sends two tickets after each handshake unless ``SSL_CTX_set_num_tickets`` says otherwise, a function
that the wheel's bindings do not have. The command ``NumTickets`` of OpenSSL's configuration does the same (see
SSL_CONF_cmd(3)), for all contexts of a process; it is read once, when the library is initialised, which happens while
``cryptography`` is imported. So it has to be in the environment when the process begins.

Imports nothing but the standard library.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "OPENSSL_CONF"
"""Where OpenSSL is told which file to read."""
NO_TICKETS = Path(__file__).with_name("openssl.cnf")


def no_tickets_environment() -> dict[str, str]:
    """What to add to the environment of a process that is to send no session tickets."""
    return {VARIABLE: str(NO_TICKETS)}


def restart_without_tickets() -> None:
    """Replace this process, unless it was started like that, by one that sends no session tickets.

    It keeps its id, its arguments and its open files. A configuration that somebody else has named stays: whoever
    serves then has to look at what it does (:func:`sluice.pki.tls.bulk.serving_engine`).
    """
    if VARIABLE not in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        argv = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, argv, {**os.environ, **no_tickets_environment()})  # noqa: S606  no shell is wanted
