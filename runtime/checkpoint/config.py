"""Where streaming jobs keep what they go on from (section ``[streaming]`` of ``sluice.toml``)."""

from __future__ import annotations

import msgspec


class StreamingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Directories that JobManagers, drivers and executors all reach under the same name."""

    checkpoints: str = ""
    """Directory, or URL that Spark knows (``s3a://…``, ``hdfs://…``), for checkpoints; empty: in the home."""
    savepoints: str = ""
    """The same for savepoints."""
    max_savepoint_mb: int = 10_240
    """Largest savepoint, in MiB. A larger one is refused, because a job could fill the disk with it."""
