"""Actors over gRPC with mutual TLS: endpoints, typed proxies, fencing, and the streams between processes."""

from runtime.rpc.call import Caller, RemotePeer
from runtime.rpc.contract import rpc
from runtime.rpc.endpoint import FencedRpcEndpoint, PermanentlyFencedRpcEndpoint, RpcEndpoint
from runtime.rpc.errors import (
    CallNotPermitted,
    ContractError,
    EndpointNotFound,
    EndpointRestarting,
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
from runtime.rpc.service import RpcService
from runtime.rpc.stats import EndpointStats
from runtime.rpc.supervision import Directive, Strategy, Terminated

__all__ = [
    "CallNotPermitted",
    "Caller",
    "ContractError",
    "Directive",
    "EndpointNotFound",
    "EndpointRestarting",
    "EndpointStats",
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
    "Strategy",
    "Terminated",
    "remotable",
    "rpc",
]
