from .metric_samples import MetricsRegistry as MetricsRegistry, Sample as Sample, families as families
from .metrics_socket import fetch as fetch, serving as serving, socket_of as socket_of
from .registry import (
    CERTIFICATE_FILE_NOT_AFTER as CERTIFICATE_FILE_NOT_AFTER,
    CONTENT_TYPE as CONTENT_TYPE,
    IDENTITY_NOT_AFTER as IDENTITY_NOT_AFTER,
    IDENTITY_NOT_BEFORE as IDENTITY_NOT_BEFORE,
    PROCESS as PROCESS,
    REGISTRY as REGISTRY,
    collecting as collecting,
    exposition as exposition,
    merge as merge,
    render as render,
)
