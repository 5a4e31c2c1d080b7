"""Who is calling: the identity comes from the certificate, never from the message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pki.identity import SpiffeId

if TYPE_CHECKING:
    from runtime.rpc.peer import RemotePeer


@dataclass(frozen=True, slots=True)
class Caller:
    """The other side of one call.

    Attributes:
        identity: from the caller's certificate; for a call within the process, the process's own.
        peer: the stream the call came over, usable for calls back; None for a call within the process.
        local: whether the call comes from within the process; only :meth:`runtime.rpc.RpcService.local` says so.
    """

    identity: SpiffeId
    peer: RemotePeer | None = None
    local: bool = False
