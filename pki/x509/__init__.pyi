from .acme_identifier import (
    ACME_IDENTIFIER as ACME_IDENTIFIER,
    ACME_TLS_PROTOCOL as ACME_TLS_PROTOCOL,
    acme_identifier as acme_identifier,
    key_authorization_digest as key_authorization_digest,
)
from .csr import (
    MAX_CSR_BYTES as MAX_CSR_BYTES,
    SIGNATURE_HASHES as SIGNATURE_HASHES,
    check_csr as check_csr,
    check_edge_key as check_edge_key,
    load_csr as load_csr,
    new_csr as new_csr,
)
from .encrypted_key import encrypt_key as encrypt_key
from .jks import (
    MAGIC as MAGIC,
    jks_key_store as jks_key_store,
    jks_trust_store as jks_trust_store,
    read_jks as read_jks,
)
from .key_identifiers import fingerprint as fingerprint, issuer_id as issuer_id, key_id as key_id
from .keys import (
    ALGORITHMS as ALGORITHMS,
    DEFAULT_ALGORITHM as DEFAULT_ALGORITHM,
    PrivateKey as PrivateKey,
    PublicKey as PublicKey,
    check_strength as check_strength,
    describe_key as describe_key,
    edge_algorithm as edge_algorithm,
    generate_key as generate_key,
    key_from_pem as key_from_pem,
    key_to_pem as key_to_pem,
    public_key_der as public_key_der,
    same_public_key as same_public_key,
    signature_hash as signature_hash,
)
from .loading import load_certificate as load_certificate, load_certificate_block as load_certificate_block
from .name_constraints import (
    check_names as check_names,
    constraints_for as constraints_for,
    constraints_of as constraints_of,
    describe_constraints as describe_constraints,
)
from .parse_errors import DAMAGED as DAMAGED, DAMAGED_JSON as DAMAGED_JSON
from .passphrase import read_passphrase as read_passphrase
from .peer_identity import (
    certified_identity as certified_identity,
    check_peer as check_peer,
    check_purpose as check_purpose,
)
from .profiles import (
    ISSUING as ISSUING,
    MAX_COMMON_NAME_CHARACTERS as MAX_COMMON_NAME_CHARACTERS,
    MAX_LEAF_LIFETIME as MAX_LEAF_LIFETIME,
    MIN_LEAF_LIFETIME as MIN_LEAF_LIFETIME,
    AuthorityKind as AuthorityKind,
    HostNames as HostNames,
    Names as Names,
    Profile as Profile,
    Purpose as Purpose,
    Validity as Validity,
    alternative_names as alternative_names,
    authority_key_usage as authority_key_usage,
    changed_lifetime as changed_lifetime,
    dns_name as dns_name,
    edge_server_profile as edge_server_profile,
    host_profile as host_profile,
    kept_lifetime as kept_lifetime,
    leaf_key_usage as leaf_key_usage,
    leaf_validity as leaf_validity,
    lifetime_words as lifetime_words,
    purposes_of as purposes_of,
    workload_profile as workload_profile,
)
from .server_name import check_host_argument as check_host_argument, check_server_name as check_server_name
from .verification import (
    Verified as Verified,
    build_path as build_path,
    describe as describe,
    verify_chain as verify_chain,
    was_issued_by as was_issued_by,
)
