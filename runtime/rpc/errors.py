"""Errors of remote calls: what each side may see, and how an error crosses the wire.

An error travels as text (type name, message, remedy, traceback); only classes registered with
:func:`remotable` are rebuilt as themselves, everything else arrives as :class:`RemoteFailure`.
Nothing is executed to rebuild one: its ``__init__`` is bypassed, only the texts are set.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TypeVar

from sluice.core import CertificateRejected, InvalidIdentity, PeerRefused, SluiceError, StoreError

MAX_TRACEBACK_CHARS = 16_384
"""Longest remote traceback that is sent, in characters; the end is kept, for it says what went wrong."""

MAX_MESSAGE_CHARS = 4_096
"""Longest error message that is sent, in characters."""

_E = TypeVar("_E", bound=type[SluiceError])
_REMOTABLE: dict[str, type[SluiceError]] = {}


def wire_name(error_class: type[BaseException]) -> str:
    """The name an error class has on the wire."""
    return f"{error_class.__module__}.{error_class.__qualname__}"


def remotable(error_class: _E) -> _E:
    """Class decorator: let this :class:`SluiceError` arrive at a remote caller as the same class.

    The rebuilt error carries ``what``, ``remedy`` and ``remote_traceback``; other attributes do not travel.
    """
    _REMOTABLE[wire_name(error_class)] = error_class
    return error_class


def remotable_names() -> frozenset[str]:
    """The names of the errors that arrive as themselves; other releases know them by these names."""
    return frozenset(_REMOTABLE)


class RpcError(SluiceError):
    """Base of the errors of package ``sluice.runtime.rpc``."""

    remote_traceback: str = ""
    """Where it happened, when it came from another endpoint; empty otherwise."""


class ContractError(RpcError):
    """A gateway Protocol, or an endpoint that serves it, is declared wrongly."""


class RpcTimeout(RpcError):
    """No answer within the timeout of the method. Whether the call took effect is unknown."""


class PeerUnreachable(RpcError):
    """The connection could not be made or ended before the answer. Whether the call took effect is unknown."""


class ProtocolViolation(RpcError):
    """The peer sent something that no correct peer sends; its connection was closed."""


class MessageTooLarge(RpcError):
    """An argument list or a result does not fit into one envelope."""


@remotable
class EndpointNotFound(RpcError):
    """No endpoint of that name runs at the peer."""


@remotable
class MethodNotFound(RpcError):
    """The endpoint declares no such remote method."""


@remotable
class InvalidArguments(RpcError):
    """The arguments are not of the declared types."""


@remotable
class FencingTokenMismatch(RpcError):
    """The call carries no fencing token, or that of another leader or session."""


@remotable
class CallNotPermitted(RpcError):
    """The caller's identity may not call this method."""


@remotable
class MailboxFull(RpcError):
    """Too many messages wait; the call was refused and had no effect."""


@remotable
class EndpointStopped(RpcError):
    """The endpoint stopped before it answered."""


@remotable
class RemoteFailure(RpcError):
    """The remote method failed with an error that has no class of its own here; ``what`` names the type."""


for _error_class in (CertificateRejected, InvalidIdentity, PeerRefused, StoreError):
    remotable(_error_class)


@dataclass(frozen=True, slots=True)
class ErrorText:
    """An error as it travels."""

    error: str
    what: str
    remedy: str
    remote_traceback: str


def describe(error: BaseException) -> ErrorText:
    """The texts of ``error``, each bounded.

    An :class:`RpcError` that itself came from a third party is told as :class:`RemoteFailure`, lest the
    caller take another peer's fencing token or mailbox for this one's.
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
    """The error that ``text`` describes; of an unknown type, a :class:`RemoteFailure`."""
    error_class = _REMOTABLE.get(text.error)
    what = text.what
    if error_class is None:
        error_class = RemoteFailure
        what = f"{text.error.rpartition('.')[2]}: {what}"
    error = error_class.__new__(error_class)
    SluiceError.__init__(error, what, text.remedy)
    error.remote_traceback = text.remote_traceback  # type: ignore[attr-defined]  # classes outside RpcError get it too
    if text.remote_traceback:
        error.add_note(f"remote traceback:\n{text.remote_traceback.rstrip()}")
    return error


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else text[:MAX_MESSAGE_CHARS] + "…"
