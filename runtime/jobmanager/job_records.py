"""The records of jobs on disk: ``<jobs>/<job_id>/job.json``, replaced atomically, beside the job's logs."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import msgspec

from pki.errors import SluiceError
from pki.files import make_private_directory, read_bounded, write_secret
from runtime.blob.store import check_job_id
from runtime.jobmanager.views import JobRecord

_LOG = logging.getLogger(__name__)

MAX_RECORD_BYTES = 4 << 20
RECORD_FILE = "job.json"


class JobRecords:
    """Reads and writes the records below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = make_private_directory(root)

    def write(self, record: JobRecord) -> None:
        """Store or replace the record of a job; flushed to disk when this returns."""
        directory = make_private_directory(self._root / check_job_id(record.detail.id))
        write_secret(directory / RECORD_FILE, msgspec.json.encode(record))

    def read_all(self) -> list[JobRecord]:
        """All readable records, the earliest first; a damaged one is logged and left alone."""
        records = []
        for path in self._root.glob(f"*/{RECORD_FILE}"):
            try:
                records.append(msgspec.json.decode(read_bounded(path, MAX_RECORD_BYTES), type=JobRecord))
            except (SluiceError, msgspec.DecodeError) as error:
                _LOG.warning("the job record %s cannot be read: %s", path, error)
        return sorted(records, key=lambda record: (record.detail.start_time, record.detail.id))

    def remove(self, job_id: str) -> None:
        """Remove the record of a job and its logs."""
        shutil.rmtree(self._root / check_job_id(job_id), ignore_errors=True)
