from .check import (
    CertificateRevoked as CertificateRevoked,
    RevocationCheck as RevocationCheck,
    check_path as check_path,
)
from .crl import (
    MAX_CRL_BYTES as MAX_CRL_BYTES,
    Reason as Reason,
    Revocation as Revocation,
    RevocationList as RevocationList,
    load_crls as load_crls,
)
from .crl_files import (
    COMPLETE_LISTS_FILE as COMPLETE_LISTS_FILE,
    CRL_FILE as CRL_FILE,
    JOB_IDENTITIES as JOB_IDENTITIES,
    PROCESS_IDENTITIES as PROCESS_IDENTITIES,
    identity_directories as identity_directories,
    install_crls as install_crls,
    push_crls as push_crls,
    take_newer as take_newer,
)
from .delta_crl import BASE_FILE as BASE_FILE, DELTA_FILE as DELTA_FILE
from .exported_certificates import ExportedCertificates as ExportedCertificates
from .revoked_peers import (
    LOOK_SECONDS as LOOK_SECONDS,
    CertificateId as CertificateId,
    RevokedPeers as RevokedPeers,
    describe_revoked as describe_revoked,
)
from .store import RevocationStore as RevocationStore, RevocationTarget as RevocationTarget
from .trusted_anchors import trusted_anchors as trusted_anchors
