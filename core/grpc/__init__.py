"""The gRPC server of the agent (Workload API, SDS) and of the gateway (xDS): framing, limits, and who may connect."""

from sluice.core.grpc.server import MAX_REQUEST_BYTES, Call, Caller, CallRefused, GrpcServer, Method

__all__ = ["MAX_REQUEST_BYTES", "Call", "CallRefused", "Caller", "GrpcServer", "Method"]
