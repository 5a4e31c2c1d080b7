"""``sluice audit --compose``: every container of a compose project, each examined from inside its own network."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from sluice.audit import (
    Container,
    EdgeAccess,
    Kind,
    Listener,
    Options,
    Report,
    Subject,
    applicable,
    containers_of,
    examine,
    in_network_of,
    joined,
    listeners_of,
    sharing_run,
)
from sluice.cli.progress import Bar, bar
from sluice.core import StoreError
from sluice.pki import Channel
from sluice.pki.authorities import TrustStore
from sluice.pki.x509 import AuthorityKind


@dataclass(frozen=True, slots=True)
class _Trust:
    """The authorities that may verify listeners, from containers that have their certificates."""

    internal: tuple[x509.Certificate, ...] = ()
    edge: tuple[x509.Certificate, ...] = ()

    def of(self, listener: Listener) -> tuple[x509.Certificate, ...]:
        """The authorities of the side of ``listener``."""
        return self.edge if listener.channel is Channel.EDGE else self.internal


def examine_project(directory: Path, project: str, options: Options) -> Report:
    """Examine all containers of the project that was started from ``directory``.

    It certifies no identities, because a container's authorities belong to the container.

    Raises:
        AuditError: there are none, or this process may not access them.
    """
    containers = containers_of(directory, project)
    trust = _trust_of(containers)
    with (
        bar("checks in containers") as shown,
        ThreadPoolExecutor(len(containers), thread_name_prefix="container") as pool,
    ):
        reports = list(
            pool.map(lambda each: _examine(each, sharing_run(each, containers), trust, options, shown), containers)
        )
    return joined(f"the containers of {containers[0].project} ({directory})", reports)


def _examine(
    container: Container, beside: tuple[Container, ...], trust: _Trust, options: Options, shown: Bar
) -> Report:
    from sluice.runtime.rest_server import PUBLISHED

    def look() -> Report:
        edge = EdgeAccess(operations=PUBLISHED)
        subjects = [
            Subject(each, options, edge=edge, anchors=trust.of(each)) for each in listeners_of(container, beside)
        ]
        if container.files.root.is_dir():
            files = Listener(
                name=f"{container.service}/home",
                kind=Kind.HOME,
                path=str(container.files.root),
                container=container.service,
            )
            subjects.append(Subject(files, options))
        shown.expect(len(applicable(subjects)))
        return examine(container.service, subjects, progress=lambda result: shown.advance(result.listener))

    return in_network_of(container.pid, look)


def _trust_of(containers: tuple[Container, ...]) -> _Trust:
    for container in containers:
        store = TrustStore(container.files.pki)
        try:
            return _Trust(store.anchors(AuthorityKind.INTERNAL), store.anchors(AuthorityKind.EDGE))
        except StoreError:
            continue
    return _Trust()
