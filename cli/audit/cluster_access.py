"""The insider audit's knowledge from outside: with access to a home, to containers, or to neither."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sluice.audit import Container, containers_of
from sluice.audit.insider import HERE, CanarySite, Target, container_targets, runners_of, targets_of
from sluice.cli.options import load_configuration
from sluice.core import EgressMode, Home, egress_mode
from sluice.runtime.sandbox import IsolationLevel


@dataclass(frozen=True)
class ClusterAccess:
    """No knowledge: the cluster is elsewhere.

    Attributes:
        homes: of the cluster, as the audit sees them; empty where it sees none.
        sites: where to place canaries.
        shown: a job's path of the home; else empty.
        bounds: what a job may use, by name.
        enforced: whether jobs may only connect to outside hosts that the policy allows.
    """

    homes: tuple[Home, ...] = ()
    sites: tuple[CanarySite, ...] = ()
    shown: str = ""
    bounds: dict[str, int] = field(default_factory=dict)
    enforced: bool = False

    def targets(self, victim: str) -> tuple[Target, ...]:
        """The targets that a job must not reach."""
        del victim
        return ()


@dataclass(frozen=True)
class HomeAccess(ClusterAccess):
    """The cluster runs on this machine."""

    @classmethod
    def of(cls, home: Home, config: Path | None) -> HomeAccess:
        """The access to ``home``, with the bounds of its configuration."""
        runtime = load_configuration(home.root, config)[1].runtime
        isolation = runtime.isolation
        bounds = {"max_slots_per_user": runtime.limits.max_slots_per_user}
        if isolation.level is not IsolationLevel.NONE:
            bounds |= {"max_processes": isolation.max_processes, "max_open_files": isolation.max_open_files}
        enforced = egress_mode(runtime.egress, isolation.level) is EgressMode.ENFORCE
        return cls((home,), HERE, str(home.root), bounds, enforced=enforced)

    def targets(self, victim: str) -> tuple[Target, ...]:
        """The targets in the home and on the machine."""
        return targets_of(self.homes[0], victim)


@dataclass(frozen=True)
class ContainerAccess(ClusterAccess):
    """The cluster runs in containers of this machine, and the audit runs as root."""

    containers: tuple[Container, ...] = ()

    @classmethod
    def of(cls, directory: Path, project: str) -> ContainerAccess:
        """The access to the containers of a compose project.

        Raises:
            AuditError: none runs, or docker does not answer.
        """
        containers = containers_of(directory, project)
        runners = runners_of(containers)
        sites = tuple(CanarySite(each.root, (each.root / each.home.lstrip("/")).stat().st_uid) for each in runners)
        homes = tuple(each.files for each in runners)
        return cls(homes, sites, runners[0].home if runners else "", {}, containers=containers)

    def targets(self, victim: str) -> tuple[Target, ...]:
        """The targets in the TaskManagers' containers, and the listeners of others."""
        return container_targets(self.containers, victim)
