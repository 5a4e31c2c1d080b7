from .acme import AcmeConfig as AcmeConfig
from .audit_export import AuditExportConfig as AuditExportConfig
from .checks import check_url as check_url
from .ext_authz import ExtAuthzConfig as ExtAuthzConfig
from .gateway import (
    AUTH_NAME as AUTH_NAME,
    CONNECT_NAME as CONNECT_NAME,
    EDGE_NAME as EDGE_NAME,
    ENVOY_NAME as ENVOY_NAME,
    MAX_ACME_NAMES as MAX_ACME_NAMES,
    GatewayConfig as GatewayConfig,
    auth_names as auth_names,
    auth_number as auth_number,
    envoy_names as envoy_names,
)
from .issuers import IssuerConfig as IssuerConfig, OidcConfig as OidcConfig
from .shared_store import SharedStoreConfig as SharedStoreConfig
