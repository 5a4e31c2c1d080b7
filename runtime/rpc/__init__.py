"""Actors over gRPC with mutual TLS."""

from runtime.rpc.contract import rpc
from runtime.rpc.errors import (
    CallNotPermitted,
    EndpointNotFound,
    EndpointStopped,
    FencingTokenMismatch,
    MailboxFull,
    PeerUnreachable,
    RemoteFailure,
    RpcError,
    RpcTimeout,
    remotable,
)

__all__ = [
    "CallNotPermitted",
    "EndpointNotFound",
    "EndpointStopped",
    "FencingTokenMismatch",
    "MailboxFull",
    "PeerUnreachable",
    "RemoteFailure",
    "RpcError",
    "RpcTimeout",
    "remotable",
    "rpc",
]
