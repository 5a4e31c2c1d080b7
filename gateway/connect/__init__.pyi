from .admission import Admission as Admission
from .envoy import (
    FLIGHT_METHODS as FLIGHT_METHODS,
    FLIGHT_SERVICE as FLIGHT_SERVICE,
    connect_cluster as connect_cluster,
    connect_operations as connect_operations,
    connect_route as connect_route,
    connect_socket as connect_socket,
    is_connect as is_connect,
)
from .messages import SERVICE as SERVICE
from .relay import ConnectRelay as ConnectRelay
from .rest import RestSessions as RestSessions
from .sessions import Sessions as Sessions
from .wire import BoundedChannel as BoundedChannel, RawCodec as RawCodec, RawDetails as RawDetails, receive as receive
