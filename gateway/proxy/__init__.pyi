from .bootstrap import (
    SOURCE as SOURCE,
    EnvoyPaths as EnvoyPaths,
    legs_of as legs_of,
    of_auth as of_auth,
    render as render,
)
from .certificate_files import CertificateFiles as CertificateFiles
from .envoy_admin import EnvoyAdmin as EnvoyAdmin, EnvoyElsewhere as EnvoyElsewhere
from .envoy_process import EnvoyProcess as EnvoyProcess, arguments as arguments
from .envoy_secrets import Secrets as Secrets
from .envoy_status import UseReports as UseReports
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
