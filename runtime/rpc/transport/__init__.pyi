from .connection import MessageStream as MessageStream, RpcConnection as RpcConnection, StreamTimeouts as StreamTimeouts
from .grpc_stream import ALPN as ALPN, GrpcStream as GrpcStream, accepting_protocol as accepting_protocol, dial as dial
from .window import SendWindow as SendWindow, has_room as has_room
