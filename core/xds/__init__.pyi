from .messages import (
    CLUSTER as CLUSTER,
    EXTENSION as EXTENSION,
    LISTENER as LISTENER,
    ROUTES as ROUTES,
    SECRET as SECRET,
    SHORT_NAMES as SHORT_NAMES,
    TYPE_PREFIX as TYPE_PREFIX,
    Message as Message,
    XdsError as XdsError,
    decode as decode,
    encode as encode,
    from_json as from_json,
    message_class as message_class,
)
from .resources import Resources as Resources
from .secrets import certificate_secret as certificate_secret, trust_secret as trust_secret
from .snapshot import SnapshotBoard as SnapshotBoard
from .stream import (
    AGGREGATED as AGGREGATED,
    ROUTE_SERVICE as ROUTE_SERVICE,
    SECRET_SERVICE as SECRET_SERVICE,
    decoded as decoded,
    serve_stream as serve_stream,
)
from .subscription import Heard as Heard, Subscription as Subscription, response as response
