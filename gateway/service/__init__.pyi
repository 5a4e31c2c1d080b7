from .assembly import auth_service as auth_service, route_file as route_file
from .connect_relay import run_connect as run_connect
from .grpc_authz import GrpcAuthorization as GrpcAuthorization
from .processes import (
    auth_announcement as auth_announcement,
    edge_directory as edge_directory,
    envoy_announcement as envoy_announcement,
    run_auth as run_auth,
    run_envoy as run_envoy,
)
