"""Savepoints: consistent copies of a streaming job's checkpoint that outlive the job until a user disposes of them.

``<root>/<savepoint-id>/data/…`` is the copy. ``<root>/<savepoint-id>/savepoint.json`` describes it and is written last:
a directory without it is not a savepoint. All methods block.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from sluice.runtime.checkpoint.config import StreamingConfig
from sluice.runtime.checkpoint.directory import CheckpointDirectory, Folder
from sluice.runtime.checkpoint.errors import CheckpointsUnavailable, SavepointFailed, SavepointNotFound
from sluice.runtime.checkpoint.ledger import Checkpoint
from sluice.runtime.messages import Message

MAX_DESCRIPTION_BYTES = 1 << 20
MAX_SAVEPOINTS = 10_000
DESCRIPTION = "savepoint.json"
DATA = "data"
RESTORED = "_restored"
"""Marker file in a job's checkpoint directory: the directory was restored completely from a savepoint."""

_ID = re.compile(r"savepoint-[0-9a-f]{6}-[0-9a-f]{16}")
_NUMBER = re.compile(r"[0-9]{1,18}")


class Savepoint(Message, frozen=True):
    """A complete savepoint. ``path`` is its location; times are epoch milliseconds."""

    id: str
    path: str
    job_id: str
    job_name: str
    owner: str
    created_at: int
    stopped: bool
    checkpoint: Checkpoint
    files: int
    size: int


def new_savepoint_id(job_id: str) -> str:
    """A new unique id. Like Flink's, it starts with the beginning of the job id."""
    return f"savepoint-{job_id[:6]}-{secrets.token_hex(8)}"


def savepoint_id_of(text: str) -> str:
    """The savepoint id in ``text``, which is an id or a path that ends with one; raises :class:`SavepointNotFound`."""
    name = text.rstrip("/").rsplit("/", 1)[-1]
    if not _ID.fullmatch(name):
        raise SavepointNotFound(f"{text[:200]!r} names no savepoint", "see sluice savepoints list")
    return name


def files_to_copy(files: Iterable[str], committed: Mapping[str, int]) -> list[str]:
    """The files of a checkpoint directory that make a savepoint of the ``committed`` batches (query name: batch).

    Leaves out later commits, offsets after the next batch, and temporary files. The offsets of the next batch are kept:
    its output may have been written already, so the batch must have the same input again.
    """
    chosen = []
    for file in files:
        parts = PurePosixPath(file).parts
        if len(parts) < 2 or parts[0] not in committed or parts[-1].endswith((".tmp", ".tmp.crc")):
            continue
        last = committed[parts[0]] + (1 if parts[1] == "offsets" else 0)
        number = parts[-1].removeprefix(".").removesuffix(".crc")
        if parts[1] in {"commits", "offsets"} and _NUMBER.fullmatch(number) and int(number) > last:
            continue
        chosen.append(file)
    return chosen


class Savepoints:
    """The savepoints in one directory. All methods block.


    Args:
        folder: the directory of the savepoints.
        checkpoints: the checkpoints that are copied.
        max_bytes: maximum size of a savepoint.
    """

    def __init__(
        self,
        folder: Folder,
        checkpoints: CheckpointDirectory,
        max_bytes: int = StreamingConfig().max_savepoint_mb << 20,
    ) -> None:
        self._folder = folder
        self._checkpoints = checkpoints
        self._max_bytes = max_bytes

    def take(self, savepoint_id: str, savepoint: Savepoint) -> Savepoint:
        """Copy the checkpoint of ``savepoint.job_id``; return the complete description.


        Raises:
            SavepointFailed: there is no checkpoint, it is too large, or it changed while it was copied.
            CheckpointsUnavailable: one of the directories is not available.
        """
        job_id = savepoint.job_id
        # Read before the listing below, which then contains all files of these batches.
        committed = self._checkpoints.committed(job_id, {each.name for each in savepoint.checkpoint.queries})
        missing = [each.name for each in savepoint.checkpoint.queries if each.name not in committed]
        if missing or not committed:
            raise SavepointFailed(f"job {job_id} has no committed batch of {', '.join(missing) or 'any query'}")
        source = self._checkpoints.folder
        done, size = set(), 0
        for file in files_to_copy(source.everything(job_id), committed):
            try:
                left = self._max_bytes - size
                size += source.copy_to(self._folder, self._data(savepoint_id, file), job_id, file, limit=left)
            except FileNotFoundError:
                continue  # Spark has removed it meanwhile: it belongs to an old batch
            if size > self._max_bytes:
                self._folder.remove(savepoint_id)
                raise SavepointFailed(
                    f"the checkpoint of job {job_id} has more than {self._max_bytes >> 20} MiB",
                    "raise streaming.max_savepoint_mb",
                )
            done.add(file)
        for name, batch in committed.items():
            needed = {f"{name}/metadata", f"{name}/commits/{batch}", f"{name}/offsets/{batch}"}
            if not needed <= done:
                self._folder.remove(savepoint_id)
                raise SavepointFailed(f"the checkpoint of query {name} changed while it was copied", "try again")
        queries = tuple(
            msgspec.structs.replace(each, batch=committed[each.name]) for each in savepoint.checkpoint.queries
        )
        complete = msgspec.structs.replace(
            savepoint,
            id=savepoint_id,
            path=f"{self._folder.url}/{savepoint_id}",
            checkpoint=msgspec.structs.replace(savepoint.checkpoint, queries=queries),
            files=len(done),
            size=size,
        )
        self._folder.write(msgspec.json.encode(complete), savepoint_id, DESCRIPTION)
        return complete

    def restore(self, savepoint_id: str, job_id: str) -> Checkpoint:
        """Copy a savepoint to the checkpoint directory of ``job_id``, once; return the checkpoint to resume from.


        Raises:
            SavepointNotFound: the savepoint does not exist, or no longer exists.
            CheckpointsUnavailable: one of the directories is not available.
        """
        target = self._checkpoints.folder
        if RESTORED in target.names(job_id):
            data = target.read(job_id, RESTORED, limit=MAX_DESCRIPTION_BYTES)
            return msgspec.json.decode(data, type=Checkpoint)
        savepoint = self.get(savepoint_id)
        self._checkpoints.remove(job_id)  # the partial copy of an interrupted attempt
        for file in self._folder.everything(savepoint_id, DATA):
            try:
                self._folder.copy_to(target, target.path(job_id, file), savepoint_id, DATA, file)
            except FileNotFoundError as error:
                raise SavepointNotFound(f"{savepoint_id} was disposed of while it was read") from error
        target.write(msgspec.json.encode(savepoint.checkpoint), job_id, RESTORED)
        return savepoint.checkpoint

    def get(self, savepoint_id: str) -> Savepoint:
        """The description of a savepoint; raises :class:`SavepointNotFound`."""
        name = savepoint_id_of(savepoint_id)
        try:
            data = self._folder.read(name, DESCRIPTION, limit=MAX_DESCRIPTION_BYTES)
            return msgspec.json.decode(data, type=Savepoint)
        except FileNotFoundError:
            raise SavepointNotFound(f"there is no savepoint {name}", "see sluice savepoints list") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CheckpointsUnavailable(f"the description of {name} cannot be read: {error}") from error

    def list(self) -> tuple[Savepoint, ...]:
        """All savepoints that can be read, the latest first."""
        found = []
        for name in self._folder.names()[:MAX_SAVEPOINTS]:
            if _ID.fullmatch(name):
                try:
                    found.append(self.get(name))
                except (SavepointNotFound, CheckpointsUnavailable):
                    continue  # incomplete, being disposed of, or damaged
        return tuple(sorted(found, key=lambda each: (each.created_at, each.id), reverse=True))

    def dispose(self, savepoint_id: str) -> None:
        """Remove a savepoint, its description first, so that a partly removed one is not a savepoint."""
        name = self.get(savepoint_id).id
        self._folder.remove(name, DESCRIPTION)
        self._folder.remove(name)

    def _data(self, savepoint_id: str, file: str) -> str:
        return self._folder.path(savepoint_id, DATA, file)


@dataclass(frozen=True, slots=True)
class CheckpointPlaces:
    """The directories of a cluster's checkpoints and savepoints."""

    checkpoints: CheckpointDirectory
    savepoints: Savepoints

    @classmethod
    def of(cls, config: StreamingConfig, home: Path) -> CheckpointPlaces:
        """The configured directories, or the defaults in ``home``; raises ``StreamingMisconfigured``."""
        checkpoints = CheckpointDirectory(Folder(config.checkpoints or str(home / "checkpoints")))
        savepoints = Folder(config.savepoints or str(home / "savepoints"))
        return cls(checkpoints, Savepoints(savepoints, checkpoints, config.max_savepoint_mb << 20))
