from .admission import admission_of as admission_of, new_salt as new_salt
from .artifacts import ArtifactStores as ArtifactStores
from .spark_sizes import mebibytes as mebibytes
from .submission import (
    CHUNK_BYTES as CHUNK_BYTES,
    STALL_SECONDS as STALL_SECONDS,
    SubmitRequest as SubmitRequest,
    receive_submission as receive_submission,
)
