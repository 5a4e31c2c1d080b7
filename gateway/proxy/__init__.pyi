from .bootstrap import (
    SOURCE as SOURCE,
    EnvoyPaths as EnvoyPaths,
    auth_service_path as auth_service_path,
    render as render,
    upstreams_of as upstreams_of,
)
from .certificate_files import CertificateFiles as CertificateFiles
from .envoy_admin import EnvoyAdmin as EnvoyAdmin, ExternalEnvoy as ExternalEnvoy
from .envoy_process import EnvoyProcess as EnvoyProcess, arguments as arguments
from .envoy_secrets import Secrets as Secrets
from .envoy_status import LoadedCertificateReports as LoadedCertificateReports
from .nginx import (
    CONFIGURATION as CONFIGURATION,
    PROBLEM_HEADER as PROBLEM_HEADER,
    PROXY as PROXY,
    PROXY_HEADER as PROXY_HEADER,
    STATUS_HEADER as STATUS_HEADER,
    TRUST_FILE as TRUST_FILE,
    NginxPaths as NginxPaths,
    render_nginx as render_nginx,
)
from .secret_feed import SecretFeed as SecretFeed, Side as Side
from .xds_publisher import Sources as Sources, publishing as publishing
