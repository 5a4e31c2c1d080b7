from .describe import (
    CertificateSummary as CertificateSummary,
    Finding as Finding,
    KeystoreSummary as KeystoreSummary,
    KeySummary as KeySummary,
    RequestSummary as RequestSummary,
    Summary as Summary,
    inspect_path as inspect_path,
    public_pem as public_pem,
    summarize_certificate as summarize_certificate,
)
from .describe_crl import CrlSummary as CrlSummary
from .problems import Problem as Problem, Severity as Severity, worst_first as worst_first
