"""Actors over gRPC with mutual TLS: endpoints, typed proxies, fencing, and the streams between processes."""

from sluice.runtime.rpc.call import Caller, RemotePeer
from sluice.runtime.rpc.contract import rpc
from sluice.runtime.rpc.endpoint import RpcEndpoint
from sluice.runtime.rpc.errors import (
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
from sluice.runtime.rpc.fenced_endpoint import FencedRpcEndpoint, PermanentlyFencedRpcEndpoint
from sluice.runtime.rpc.heartbeat import HeartbeatMonitor
from sluice.runtime.rpc.line import StreamTimeouts
from sluice.runtime.rpc.service import RpcService
from sluice.runtime.rpc.stats import EndpointStats

__all__ = [
    "CallNotPermitted",
    "Caller",
    "ContractError",
    "EndpointNotFound",
    "EndpointStats",
    "EndpointStopped",
    "FencedRpcEndpoint",
    "FencingTokenMismatch",
    "HeartbeatMonitor",
    "InvalidArguments",
    "MailboxFull",
    "MessageTooLarge",
    "MethodNotFound",
    "PeerUnreachable",
    "PermanentlyFencedRpcEndpoint",
    "ProtocolViolation",
    "RemoteFailure",
    "RemotePeer",
    "RpcEndpoint",
    "RpcError",
    "RpcService",
    "RpcTimeout",
    "StreamTimeouts",
    "remotable",
    "rpc",
]
