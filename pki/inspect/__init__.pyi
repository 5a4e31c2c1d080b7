from .describe import (
    CertificateSummary as CertificateSummary,
    FileContent as FileContent,
    KeystoreSummary as KeystoreSummary,
    KeySummary as KeySummary,
    RequestSummary as RequestSummary,
    Summary as Summary,
    inspect_path as inspect_path,
    public_pem as public_pem,
    summarize_certificate as summarize_certificate,
)
from .describe_crl import CrlSummary as CrlSummary
from .findings import Finding as Finding, Severity as Severity, worst_first as worst_first
