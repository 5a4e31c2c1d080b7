from .bulk import (
    DEFAULT_ENGINE as DEFAULT_ENGINE,
    BulkStream as BulkStream,
    BulkTls as BulkTls,
    Engine as Engine,
    StreamBroken as StreamBroken,
    abort_socket as abort_socket,
    serving_engine as serving_engine,
)
from .connection_guard import ConnectionGuard as ConnectionGuard
from .connections import (
    ConnectionLog as ConnectionLog,
    PeerCertificate as PeerCertificate,
    describe_certificate as describe_certificate,
    key_name as key_name,
)
from .contexts import (
    TlsIdentity as TlsIdentity,
    challenge_client_context as challenge_client_context,
    enrolment_client_context as enrolment_client_context,
    enrolment_server_context as enrolment_server_context,
    host_server_context as host_server_context,
    peer_of as peer_of,
    tls_object_of as tls_object_of,
    unverified_client_context as unverified_client_context,
)
from .edge_client import EdgeTrust as EdgeTrust, edge_client_context as edge_client_context
from .listener import MutualTlsListener as MutualTlsListener
from .openssl_settings import (
    no_tickets_environment as no_tickets_environment,
    restart_without_tickets as restart_without_tickets,
)
from .pending_peers import PendingPeers as PendingPeers, network_of as network_of
from .server_auth_listener import ServerAuthListener as ServerAuthListener
