from .envoy import (
    connect_cluster as connect_cluster,
    connect_operations as connect_operations,
    connect_route as connect_route,
    connect_socket as connect_socket,
    is_connect as is_connect,
)
from .relay import ConnectRelay as ConnectRelay
from .rest import RestSessions as RestSessions
from .sessions import Sessions as Sessions
from .wire import RawCodec as RawCodec, RawDetails as RawDetails
