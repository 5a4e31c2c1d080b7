"""The isolation of the job processes that this process starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from sluice.runtime.sandbox.attachment import NetworkAttachment
from sluice.runtime.sandbox.bounds import (
    ControlGroups,
    Guard,
    Subject,
    driver_jvm_memory_mb,
    executor_memory_mb,
    jvm_memory_mb,
)
from sluice.runtime.sandbox.box import Box, IsolationSetup
from sluice.runtime.sandbox.config import IsolationConfig, IsolationLevel
from sluice.runtime.sandbox.errors import SandboxRefused, SandboxUnavailable
from sluice.runtime.sandbox.landlock import landlock_version
from sluice.runtime.sandbox.late_mounts import mount_later, try_mounts
from sluice.runtime.sandbox.limits import Limits
from sluice.runtime.sandbox.mounts import Mount, check_path, in_order
from sluice.runtime.sandbox.system_view import python_paths
from sluice.runtime.sandbox.trial import TRIAL_JOB, Trial, find_isolation, isolation_setup, own_rights
from sluice.runtime.sandbox.uids import allow_traversal, change_owner, job_uid
from sluice.runtime.sandbox.view import View

_LOG = logging.getLogger(__name__)


class Sandbox:
    """Creates the boxes for job processes. Each process that starts some creates one with :meth:`prepare`."""

    def __init__(
        self, config: IsolationConfig, isolation: IsolationSetup | None, *, own_uids: bool, private: Sequence[Path]
    ) -> None:
        self.config = config
        self._isolation = isolation
        self._own_uids = own_uids
        self._private = tuple(private)
        self._groups: ControlGroups | None = None

    @classmethod
    def as_tried(cls, trial: Trial, config: IsolationConfig, *, private: Sequence[Path] = ()) -> Sandbox:
        """Create a sandbox from the trial of another process, which must have the same rights as this process.

        Args:
            trial: the :attr:`trial` of the other process's sandbox.
            config: section ``[isolation]``, the same as in that trial.
            private: directories that no job may see.
        """
        isolation = None if config.level is IsolationLevel.NONE else isolation_setup(trial.bwrap)
        sandbox = cls(config, isolation, own_uids=trial.own_uids, private=private)
        sandbox._groups = ControlGroups.find()
        return sandbox

    @classmethod
    def prepare(cls, config: IsolationConfig, *, private: Sequence[Path] = (), own_networks: bool = False) -> Sandbox:
        """Create a sandbox and verify the configured level by starting a real process in it; takes about 100 ms.

        Args:
            config: section ``[isolation]``.
            private: directories that no job may see, wherever they are, such as the home directory with its keys.
            own_networks: also verify that boxes can have private networks; takes about 200 ms more.

        Raises:
            SandboxUnavailable: this machine does not support it. The error contains the cause and a remedy.
        """
        isolation, own_uids = find_isolation(config)
        sandbox = cls(config, isolation, own_uids=own_uids, private=private)
        sandbox._groups = ControlGroups.find()
        if sandbox._groups is not None:
            sandbox._groups.remove_stale()
        if own_networks:
            sandbox._try_networks()
        _LOG.info("isolation of jobs: %s; %s", sandbox, sandbox.bounds)
        return sandbox

    def _try_networks(self) -> None:
        if self._isolation is None or not self._isolation.bwrap:
            raise SandboxUnavailable(
                f'jobs can have private networks only at isolation.level = "sandbox", not "{self.level}"',
                'set that level, or let jobs reach everything: egress.mode = "off"',
            )
        if self.config.writable and landlock_version() < 1:
            raise SandboxUnavailable(
                "jobs could pass connections to each other in the directories that all may write (isolation.writable), "
                "because this kernel has no Landlock to forbid sockets there",
                "start it with Linux 5.13 or newer and lsm=landlock,…, leave isolation.writable out, "
                'or let jobs reach everything: egress.mode = "off"',
            )
        from sluice.runtime.sandbox.network import try_network  # imports modules that only TaskManagers need

        uid = self.uid(TRIAL_JOB)
        try_network(
            lambda attachment: self.box(View(TRIAL_JOB), Limits(), network=attachment), uid=uid, rights=own_rights()
        )

    @property
    def trial(self) -> Trial:
        """The result of the trial, for the child processes of this process."""
        return Trial(bwrap="" if self._isolation is None else self._isolation.bwrap, own_uids=self._own_uids)

    @property
    def private(self) -> Sequence[Path]:
        """The directories that no job may see, as passed to :meth:`prepare`."""
        return self._private

    @property
    def level(self) -> IsolationLevel:
        """The isolation level of every box."""
        return self.config.level

    @property
    def bounds(self) -> str:
        """A description of how limits are enforced."""
        if self._groups is None:
            return "memory and processes are watched: this process cannot create control groups"
        return f"memory and processes are limited by control groups, version {2 if self._groups.unified else 1}"

    def __str__(self) -> str:
        if self._isolation is None:
            return "none: jobs can do what this process can"
        how = f"bubblewrap ({self._isolation.bwrap})" if self._isolation.bwrap else "no namespaces"
        return f"{self.level}: {how}, {'a uid for each job' if self._own_uids else 'user namespaces'}"

    def uid(self, job_id: str) -> int | None:
        """The job's own uid; None: its processes run with the uid of this process."""
        return job_uid(job_id) if self._own_uids else None

    def own(self, paths: Iterable[Path], job_id: str) -> None:
        """Change the owner of ``paths`` and their contents to the job's uid, if it has one. Follows no links.

        Without namespaces the job's uid must traverse the parent directories. Other users may then enter these
        directories, but not list them.

        Raises:
            SandboxRefused: a path is a link, or a file has several hard links.
        """
        uid = self.uid(job_id)
        if uid is not None:
            for path in paths:
                change_owner(path, uid)
                if self._isolation is not None and not self._isolation.bwrap:
                    allow_traversal(path)

    @property
    def can_mount_later(self) -> bool:
        """Whether a box with its own uid can be created before its job is known (see :meth:`mount_later`)."""
        return self._own_uids and self._isolation is not None and bool(self._isolation.bwrap)

    def mount_later(self, pid: int, box_id: str, job_id: str, directories: Sequence[Path]) -> None:
        """Mount ``directories`` and the configured writable paths into a waiting box, now that its job is known.

        Args:
            pid: the process that was started for the box. No code of a job may have run in the box yet.
            box_id: the id that the box's view has instead of a job id.
            job_id: the job that owns the directories.
            directories: the box must have empty directories at these paths.

        Raises:
            SandboxRefused: this machine does not support it, or the box has ended.
        """
        mount_later(pid, [*self._writable_by_all(), *directories], self._exchanged(box_id, job_id))

    def try_later(self, box_id: str, directories: Sequence[Path]) -> None:
        """Check whether :meth:`mount_later` works for paths below ``directories``.

        Raises:
            SandboxRefused: this machine does not support it.
        """
        try_mounts([*self._writable_by_all(), *directories], self._exchanged(box_id, TRIAL_JOB))

    def _exchanged(self, box_id: str, job_id: str) -> tuple[int, int]:
        if not self.can_mount_later:
            raise SandboxRefused("a box without its own uid cannot be given to a job later")
        return job_uid(job_id), job_uid(box_id)

    def _writable_by_all(self) -> list[Path]:
        """The existing paths that all jobs may write."""
        paths = [check_path(path) for path in _with_targets(map(Path, self.config.writable))]
        return [path for path in paths if path.exists() and not path.is_symlink()]

    def limits(self, *, memory_mb: int = 0, cores: int = 0) -> Limits:
        """The configured limits, with the memory and cores of one slot."""
        config = self.config
        return Limits(
            memory_mb=memory_mb,
            processes=config.max_processes,
            open_files=config.max_open_files,
            disk_mb=config.disk_mb,
            files=config.max_files,
            log_mb=config.log_mb,
            tmp_mb=config.tmp_mb,
            cores=cores,
        )

    def executor_limits(self, *, heap_mb: int, cores: int) -> Limits:
        """The limits of an executor with ``cores`` and a heap of ``heap_mb`` MiB."""
        return self.limits(memory_mb=executor_memory_mb(self.config, heap_mb, cores), cores=cores)

    def driver_jvm_limits(self, *, heap_mb: int) -> Limits:
        """The limits of a driver's JVM with a heap of ``heap_mb`` MiB."""
        return self.limits(memory_mb=driver_jvm_memory_mb(self.config, heap_mb), cores=1)

    def history_ui_limits(self, *, heap_mb: int, disk_mb: int, tmp_mb: int) -> Limits:
        """The limits of a JVM that serves Spark's UI for an ended job."""
        memory_mb = jvm_memory_mb(self.config, heap_mb)
        return replace(self.limits(memory_mb=memory_mb, cores=1), disk_mb=disk_mb, tmp_mb=tmp_mb)

    def driver_python_limits(self) -> Limits:
        """The limits of a driver's Python process."""
        return self.limits(memory_mb=self.config.driver_python_memory_mb, cores=1)

    def guard(
        self, limits: Limits, subject: Subject, *, directories: Sequence[Path] = (), logs: Sequence[IO[bytes]] = ()
    ) -> Guard:
        """The guard that enforces ``limits`` on a process of a job, at every isolation level."""
        return Guard(limits, subject, directories=directories, logs=logs, groups=self._groups)

    def offline_box(self, view: View, limits: Limits) -> Box:
        """The box of one process without any network.

        Raises:
            SandboxRefused: the level has no namespaces, or for the reasons of :meth:`box`.
        """
        if self._isolation is None or not self._isolation.bwrap:
            raise SandboxRefused(
                f"only a box with namespaces can run without a network, not one at level {self.level}",
                'set [isolation] level = "sandbox"',
            )
        return replace(self.box(view, limits), offline=True)

    def box(self, view: View, limits: Limits, *, network: NetworkAttachment | None = None) -> Box:
        """The box of one process.

        Args:
            view: the paths that the process sees.
            limits: its resource limits.
            network: attaches it to the job's private network, see :mod:`sluice.runtime.sandbox.network`; None: it uses
                the machine's network.

        Raises:
            SandboxRefused: the box would show too much, or a path below one that the job can write; or it needs a
                network or secrets but has no namespaces.
        """
        if network is not None and (self._isolation is None or not self._isolation.bwrap):
            raise SandboxRefused("only a box with namespaces can have a private network")
        if view.secrets and (self._isolation is None or not self._isolation.bwrap):
            raise SandboxRefused(
                f"a job may not have secrets at level {self.level}: others would see them",
                'set [isolation] level = "sandbox", or submit the job without secrets',
            )
        if self._isolation is None:
            return Box(view, limits)
        if self._own_uids and not self._isolation.bwrap:
            # Paths such as checkpoints, or compiled code in a home directory.
            for path in (*view.read_only, *view.writable, *view.shared):
                allow_traversal(path)
        shared = frozenset(self._shared(view)) if network is not None else frozenset()
        return Box(view, limits, self._isolation, self.uid(view.job_id), tuple(self._mounts(view)), network, shared)

    def _shared(self, view: View) -> list[Path]:
        return _with_targets([*view.shared, *map(Path, self.config.writable)])

    def _mounts(self, view: View) -> list[Mount]:
        readable = [*python_paths(), *view.read_only, *map(Path, self.config.read_only)]
        if view.identity is not None:
            readable.append(view.identity)
        shown = [Mount.read_only(check_path(path)) for path in _with_targets(readable)]
        private = [path for path in _with_targets(self._private) if any(path.is_relative_to(m.path) for m in shown)]
        return in_order(
            [
                *(Mount.empty(path) for path in private),
                *shown,
                *(Mount.read_only(check_path(path), source=source) for path, source in view.read_only_remapped.items()),
                *(Mount.writable(check_path(path)) for path in (*_with_targets(view.writable), *self._shared(view))),
            ]
        )


def _with_targets(paths: Iterable[Path]) -> list[Path]:
    """``paths`` and their targets with all links resolved, because programs use either."""
    return list(dict.fromkeys(each for path in paths for each in (path, path.resolve())))
