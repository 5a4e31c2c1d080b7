"""Describes why a connection failed; messages of client libraries show internal objects."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl

import aiohttp


def describe_connection_error(error: Exception) -> str:
    """Why the connection failed, or got no answer."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        found = error.certificate_error
        return getattr(found, "verify_message", "") or str(found)
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    match cause:
        case aiohttp.ServerDisconnectedError():
            told = "the connection was closed without an answer"
        case ssl.SSLError():
            told = f"the TLS handshake failed: {cause.reason or type(cause).__name__}"
        case socket.gaierror():
            told = "there is no host of this name"
        case OSError() if (number := _errno_of(cause)) in errno.errorcode:
            told = os.strerror(number)
        case TimeoutError():
            told = "no answer in time"
        case _:
            told = str(cause) or type(cause).__name__
    return told


def _errno_of(error: OSError) -> int:
    """The error number; after several addresses were tried, it is only in the text."""
    if error.errno:
        return error.errno
    found = re.search(r"\[Errno (\d+)\]", str(error))
    return int(found[1]) if found else 0
