from .server import (
    MAX_REQUEST_BYTES as MAX_REQUEST_BYTES,
    Call as Call,
    Caller as Caller,
    CallRefused as CallRefused,
    GrpcServer as GrpcServer,
    Method as Method,
    Pace as Pace,
)
