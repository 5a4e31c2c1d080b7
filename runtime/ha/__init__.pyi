from .config import HaConfig as HaConfig, check_ha as check_ha
from .embedded import EmbeddedElection as EmbeddedElection
from .errors import (
    EntryDamaged as EntryDamaged,
    EntryMissing as EntryMissing,
    HaError as HaError,
    HaMisconfigured as HaMisconfigured,
    LeadershipLost as LeadershipLost,
    NotReconciled as NotReconciled,
    OutcomeUnknown as OutcomeUnknown,
    PointerConflict as PointerConflict,
    PointerExists as PointerExists,
    PointersFull as PointersFull,
    StorageUnavailable as StorageUnavailable,
)
from .leader_endpoint import (
    LEADER as LEADER,
    LeaderAddress as LeaderAddress,
    LeaderEndpoint as LeaderEndpoint,
    LeaderGateway as LeaderGateway,
)
from .leadership import (
    LeaderElection as LeaderElection,
    LeaderInformation as LeaderInformation,
    Leadership as Leadership,
)
from .origin import origin_of as origin_of
from .pointers import MAX_POINTERS as MAX_POINTERS, PointerStore as PointerStore
from .services import make_election as make_election, make_storage as make_storage
from .storage import HaStorage as HaStorage, StoredEntry as StoredEntry
from .storage_identity import check_storage as check_storage
from .terms import Ready as Ready, run_terms as run_terms
