from .call import Caller as Caller, RemotePeer as RemotePeer
from .contract import rpc as rpc
from .endpoint import Host as Host, RpcEndpoint as RpcEndpoint
from .errors import (
    CallNotPermitted as CallNotPermitted,
    ContractError as ContractError,
    EndpointNotFound as EndpointNotFound,
    EndpointStopped as EndpointStopped,
    FencingTokenMismatch as FencingTokenMismatch,
    InvalidArguments as InvalidArguments,
    MailboxFull as MailboxFull,
    MessageTooLarge as MessageTooLarge,
    MethodNotFound as MethodNotFound,
    PeerUnreachable as PeerUnreachable,
    ProtocolViolation as ProtocolViolation,
    RemoteFailure as RemoteFailure,
    RpcError as RpcError,
    RpcTimeout as RpcTimeout,
    remotable as remotable,
)
from .fenced_endpoint import (
    FencedRpcEndpoint as FencedRpcEndpoint,
    PermanentlyFencedRpcEndpoint as PermanentlyFencedRpcEndpoint,
)
from .heartbeat import HeartbeatMonitor as HeartbeatMonitor, stall_limit as stall_limit
from .service import RpcService as RpcService
from .transport import StreamTimeouts as StreamTimeouts
