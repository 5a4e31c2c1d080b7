from .config import StreamingConfig as StreamingConfig
from .errors import (
    CheckpointLost as CheckpointLost,
    CheckpointsUnavailable as CheckpointsUnavailable,
    NotStreaming as NotStreaming,
    SavepointFailed as SavepointFailed,
    SavepointNotFound as SavepointNotFound,
)
from .ledger import (
    Checkpoint as Checkpoint,
    CheckpointLedger as CheckpointLedger,
    CheckpointsView as CheckpointsView,
    decode as decode,
    encode as encode,
    missing_batches as missing_batches,
)
from .savepoints import (
    CheckpointPlaces as CheckpointPlaces,
    Savepoint as Savepoint,
    Savepoints as Savepoints,
    new_savepoint_id as new_savepoint_id,
)
