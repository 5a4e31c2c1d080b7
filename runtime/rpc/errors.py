"""Errors of remote calls, and how an error is sent over the wire.

An error is sent as text (type name, message, remedy, traceback). Only classes registered with :func:`remotable` are
rebuilt as themselves; all others arrive as :class:`RemoteFailure`. Rebuilding executes no code of the class: its
``__init__`` is bypassed, and only the texts are set.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TypeVar

from sluice.core import CertificateRejected, InvalidIdentity, PeerRefused, SluiceError, StoreError

MAX_TRACEBACK_CHARS = 16_384
"""Longest remote traceback that is sent, in characters. Its end is kept, which has the cause."""

MAX_MESSAGE_CHARS = 4_096
"""Longest error message that is sent, in characters."""

_E = TypeVar("_E", bound=type[SluiceError])
_REMOTABLE: dict[str, type[SluiceError]] = {}


def wire_name(error_class: type[BaseException]) -> str:
    """The name of an error class on the wire."""
    return f"{error_class.__module__}.{error_class.__qualname__}"


def remotable(error_class: _E) -> _E:
    """Class decorator: rebuild this :class:`SluiceError` at a remote caller as the same class.

    The rebuilt error has ``what``, ``remedy`` and ``remote_traceback``; other attributes are not sent.
    """
    _REMOTABLE[wire_name(error_class)] = error_class
    return error_class


def remotable_names() -> frozenset[str]:
    """The wire names of the remotable errors; other releases know them by these names."""
    return frozenset(_REMOTABLE)


class RpcError(SluiceError):
    """Base of the errors of package ``sluice.runtime.rpc``."""

    remote_traceback: str = ""
    """The traceback at the other endpoint; empty for a local error."""


class ContractError(RpcError):
    """The declaration of a gateway Protocol, or of an endpoint that serves it, is wrong."""


class RpcTimeout(RpcError):
    """There was no answer within the timeout of the method. Whether the call took effect is unknown."""


class PeerUnreachable(RpcError):
    """The connection failed, or ended before the answer. Whether the call took effect is unknown."""


class ProtocolViolation(RpcError):
    """The peer violated the protocol; its connection was closed."""


class MessageTooLarge(RpcError):
    """An argument list or a result does not fit into one envelope."""


@remotable
class EndpointNotFound(RpcError):
    """The peer runs no endpoint of that name."""


@remotable
class MethodNotFound(RpcError):
    """The endpoint declares no such remote method."""


@remotable
class InvalidArguments(RpcError):
    """The arguments are not of the declared types."""


@remotable
class FencingTokenMismatch(RpcError):
    """The call has no fencing token, or the token of another leader or session."""


@remotable
class CallNotPermitted(RpcError):
    """The caller's identity may not call this method."""


@remotable
class MailboxFull(RpcError):
    """Too many messages wait. The call was refused and had no effect."""


@remotable
class EndpointStopped(RpcError):
    """The endpoint stopped before it answered."""


@remotable
class RemoteFailure(RpcError):
    """The remote method failed with an error whose class is not remotable; ``what`` names the class."""


for _error_class in (CertificateRejected, InvalidIdentity, PeerRefused, StoreError):
    remotable(_error_class)


@dataclass(frozen=True, slots=True)
class ErrorText:
    """An error in the form in which it is sent."""

    error: str
    what: str
    remedy: str
    remote_traceback: str


def describe(error: BaseException) -> ErrorText:
    """Return the texts of ``error``, each bounded.

    An :class:`RpcError` that came from a third party is sent as :class:`RemoteFailure`. Otherwise the caller could
    mistake another peer's fencing token or mailbox for this one's.
    """
    text = "".join(traceback.format_exception(error))
    if len(text) > MAX_TRACEBACK_CHARS:
        text = "...\n" + text[-MAX_TRACEBACK_CHARS:]
    relayed = isinstance(error, RpcError) and bool(error.remote_traceback)
    if isinstance(error, SluiceError) and wire_name(type(error)) in _REMOTABLE and not relayed:
        return ErrorText(wire_name(type(error)), _bounded(error.what), _bounded(error.remedy), text)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return ErrorText(wire_name(RemoteFailure), _bounded(what), "", text)


def rebuild(text: ErrorText) -> SluiceError:
    """Rebuild the error that ``text`` describes; an error of an unknown type becomes :class:`RemoteFailure`."""
    error_class = _REMOTABLE.get(text.error)
    what = text.what
    if error_class is None:
        error_class = RemoteFailure
        what = f"{text.error.rpartition('.')[2]}: {what}"
    error = error_class.__new__(error_class)
    SluiceError.__init__(error, what, text.remedy)
    error.remote_traceback = text.remote_traceback  # type: ignore[attr-defined]  # set on classes outside RpcError, too
    if text.remote_traceback:
        error.add_note(f"remote traceback:\n{text.remote_traceback.rstrip()}")
    return error


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + "…"
