"""Actors over gRPC with mutual TLS: endpoints, typed proxies, fencing, and the streams between processes."""

from runtime.rpc.caller import Caller
from runtime.rpc.contract import rpc
from runtime.rpc.endpoint import FencedRpcEndpoint, PermanentlyFencedRpcEndpoint, RpcEndpoint
from runtime.rpc.errors import (
    CallNotPermitted,
    ContractError,
    EndpointNotFound,
    EndpointStopped,
    FencingTokenMismatch,
    InvalidArguments,
    MailboxFull,
    MessageTooLarge,
    MethodNotFound,
    PeerUnreachable,
    ProtocolViolation,
    RemoteFailure,
    RpcError,
    RpcTimeout,
    remotable,
)
from runtime.rpc.heartbeat import HeartbeatMonitor
from runtime.rpc.line import Patience
from runtime.rpc.peer import RemotePeer
from runtime.rpc.service import RpcService

__all__ = [
    "CallNotPermitted",
    "Caller",
    "ContractError",
    "EndpointNotFound",
    "EndpointStopped",
    "FencedRpcEndpoint",
    "FencingTokenMismatch",
    "HeartbeatMonitor",
    "InvalidArguments",
    "MailboxFull",
    "MessageTooLarge",
    "MethodNotFound",
    "Patience",
    "PeerUnreachable",
    "PermanentlyFencedRpcEndpoint",
    "ProtocolViolation",
    "RemoteFailure",
    "RemotePeer",
    "RpcEndpoint",
    "RpcError",
    "RpcService",
    "RpcTimeout",
    "remotable",
    "rpc",
]
