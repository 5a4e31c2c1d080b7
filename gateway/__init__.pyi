from .config import (
    AUTH_NAME as AUTH_NAME,
    CONNECT_NAME as CONNECT_NAME,
    EDGE_NAME as EDGE_NAME,
    ENVOY_NAME as ENVOY_NAME,
    GatewayConfig as GatewayConfig,
    SharedStoreConfig as SharedStoreConfig,
    auth_names as auth_names,
    envoy_names as envoy_names,
)
from .job_tokens import job_tokens_in as job_tokens_in
from .listening import require_free_port as require_free_port
from .principal import AccessRole as AccessRole, is_group as is_group, is_name as is_name
