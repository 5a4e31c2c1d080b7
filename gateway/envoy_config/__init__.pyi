from .acme import ACME_HTTP as ACME_HTTP, http_challenge_routes as http_challenge_routes
from .clusters import edge_clusters as edge_clusters
from .edge import (
    EdgeInputs as EdgeInputs,
    edge_documents as edge_documents,
    edge_resources as edge_resources,
    extension_resources as extension_resources,
)
from .egress import (
    EGRESS as EGRESS,
    INTERNAL_LISTENER_HEADER as INTERNAL_LISTENER_HEADER,
    NO_EGRESS as NO_EGRESS,
    is_on as is_on,
)
from .headers import (
    CLIENT_CERTIFICATE as CLIENT_CERTIFICATE,
    NOT_FROM_CLIENTS as NOT_FROM_CLIENTS,
    REMOVED_HEADERS as REMOVED_HEADERS,
)
from .json_values import FROM_XDS as FROM_XDS, extension as extension, seconds as seconds
from .limits import rate_limit as rate_limit
from .listeners import SOURCE as SOURCE, edge_listener as edge_listener
from .replies import DENIED_PATH as DENIED_PATH, LOCAL_DETAILS as LOCAL_DETAILS
from .routes import (
    DISCOVERY_PATH as DISCOVERY_PATH,
    DISCOVERY_PATHS as DISCOVERY_PATHS,
    REMOVED_TOWARDS_REST as REMOVED_TOWARDS_REST,
    TOKEN_KEYS_PATH as TOKEN_KEYS_PATH,
    Grants as Grants,
    domains as domains,
    route_configuration as route_configuration,
)
from .templates import DIRECTORY as DIRECTORY, fill as fill, load_source as load_source
from .tracing import Collector as Collector, collector_of as collector_of
