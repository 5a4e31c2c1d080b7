"""An error as people read it, in three parts: what went wrong, why, and what to do about it."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from collections.abc import Iterator

import aiohttp
from rich.console import Console

from sluice.core.errors import SluiceError

MAX_CAUSES = 4
_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.EACCES: "see who owns it, and whether you may",
    errno.EPERM: "see who owns it, and whether you may",
    errno.EROFS: "choose a place that can be written to",
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or have your quota raised",
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
    errno.ENOMEM: "free some memory",
}


def tell(error: SluiceError, console: Console) -> None:
    """Write ``error`` to ``console``; parts that there are none of are left out."""
    _line(console, f"error: {error.what}", style="red")
    for cause in causes(error):
        _line(console, f"  why:  {cause}")
    if error.remedy:
        _line(console, f"  do:   {error.remedy}")


def of_the_system(error: OSError) -> SluiceError:
    """What the operating system refused, as an error of ours: with the file it concerns, and what usually helps."""
    about = f"{error.filename}: " if error.filename else ""
    remedy = _REMEDIES.get(error.errno or 0, "`sluice doctor` examines this machine")
    return SluiceError(f"{about}{error.strerror or str(error) or type(error).__name__}", remedy)


def unconnected(error: Exception) -> str:
    """Why there was no connection, or no answer on it, in words: a client library's own show its objects."""
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
        case OSError() if (number := _number(cause)) in errno.errorcode:
            told = os.strerror(number)
        case TimeoutError():
            told = "no answer in time"
        case _:
            told = str(cause) or type(cause).__name__
    return told


def _number(error: OSError) -> int:
    """Its errno; when several addresses were tried, it is in the text alone."""
    if error.errno:
        return error.errno
    found = re.search(r"\[Errno (\d+)\]", str(error))
    return int(found[1]) if found else 0


def of_ours(error: Exception) -> SluiceError:
    """A fault in Sluice itself, which is told as one."""
    told = SluiceError("this is a fault in Sluice, not in what you did", "please report it, with the lines above")
    told.__cause__ = error
    return told


def causes(error: BaseException) -> Iterator[str]:
    """What led to ``error``, the nearest cause first, without what it says itself already."""
    told = str(error).lower()
    cause = error.__cause__
    for _ in range(MAX_CAUSES):
        if cause is None:
            return
        words = _words(cause)
        if words.lower() not in told:
            told += words.lower()
            yield words
        cause = cause.__cause__


def _words(cause: BaseException) -> str:
    match cause:
        case SluiceError():
            text = cause.what
        case aiohttp.ClientError() | OSError(filename=None):
            text = unconnected(cause)
        case _:
            text = str(cause)
    first = text.strip().partition("\n")[0]
    return first or type(cause).__name__


def _line(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)
