from .announcements import auth_announcement as auth_announcement, envoy_announcement as envoy_announcement
from .assembly import auth_service as auth_service, route_file as route_file
from .auth_process import run_auth as run_auth
from .connect_relay import run_connect as run_connect
from .edge_certificate import edge_directory as edge_directory
from .envoy_process import run_envoy as run_envoy
from .grpc_authz import GrpcAuthorization as GrpcAuthorization
