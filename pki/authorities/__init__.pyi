from .bundle_files import bundle_file as bundle_file
from .offline import (
    check_signed as check_signed,
    request_authority as request_authority,
    sign_authority as sign_authority,
)
from .openssl_anchors import trusted_pem as trusted_pem
from .rotation_phases import (
    Generations as Generations,
    Keep as Keep,
    Laggard as Laggard,
    PeersLag as PeersLag,
    Phase as Phase,
    Rotation as Rotation,
    RotationRefused as RotationRefused,
    Source as Source,
    TrustHolder as TrustHolder,
    Verb as Verb,
    check_verb as check_verb,
    lacking as lacking,
    left_out as left_out,
    phase_of as phase_of,
    presenting as presenting,
    trusting as trusting,
    unknown_names as unknown_names,
)
from .rotation_store import (
    RotationStore as RotationStore,
    read_rotation as read_rotation,
    rotation_directory as rotation_directory,
)
from .signing import (
    Authority as Authority,
    authority_key_identifier as authority_key_identifier,
    sign_leaf as sign_leaf,
    to_pem as to_pem,
    trust_domain_of as trust_domain_of,
)
from .store import (
    CERTIFICATE_FILE as CERTIFICATE_FILE,
    ENCRYPTED as ENCRYPTED,
    KEY_FILE as KEY_FILE,
    AuthorityStore as AuthorityStore,
)
from .trusted_authorities import TrustStore as TrustStore
