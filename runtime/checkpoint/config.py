"""The locations of checkpoints and savepoints (section ``[streaming]`` of ``sluice.toml``)."""

from __future__ import annotations

import msgspec


class StreamingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Directories that JobManagers, drivers and executors can all reach under the same path or URL."""

    checkpoints: str = ""
    """Directory, or URL that Spark supports (``s3a://…``, ``hdfs://…``), for checkpoints; empty: in the home."""
    savepoints: str = ""
    """The same for savepoints."""
    max_savepoint_mb: int = 10_240
    """Maximum size of a savepoint, in MiB. Larger ones are refused, because a job could fill the disk."""
