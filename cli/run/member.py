"""A process of the cluster that ``sluice run`` starts: options, identity, and serving."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.cli.config import Configuration
from sluice.cli.option_groups import option_group
from sluice.cli.options import DEFAULT_HOME, ConfigOption, HomeOption, load_configuration
from sluice.cli.run.joining import (
    AnchorsOption,
    CaOption,
    JoinDnsOption,
    Joining,
    JoinIpOption,
    PodTokenFileOption,
    TokenFileOption,
    join_credential,
    joined,
    joining,
    own_identity,
)
from sluice.cli.serving import process_of, serve
from sluice.core import Home
from sluice.pki import Role
from sluice.pki.enrolment import EnrolledIdentity, Locate


@dataclass(frozen=True, slots=True)
class Member:
    """A process with its home, its configuration, and, on another machine, its options for joining."""

    home: Home
    configuration: Configuration
    join: Joining | None
    role: Role
    name: str

    @property
    def locate_ca(self) -> Locate | None:
        """Returns the addresses of the online authorities; None: they are on this machine."""
        return None if self.join is None else self.join.locate

    @property
    def rest_address(self) -> tuple[str, int] | None:
        """Host and port of REST where the JobManager is on another machine."""
        settings = self.configuration.jobmanager
        return (settings.rest_host, settings.rest_port) if settings.rest_host else None

    def serve(
        self, main: Callable[[], Coroutine[Any, Any, None]], identities: Sequence[EnrolledIdentity] | None = None
    ) -> None:
        """Get the identities (by default the one of its role and name), then run ``main`` until a signal ends it."""
        if identities is None:
            identities = own_identity(self.home, self.configuration.pki, self.join, self.role, self.name)
        process = process_of(self.home, self.configuration, self.role, self.name)
        serve(joined(self.home, self.join, identities, main), process)


@dataclass(frozen=True, slots=True)
class MemberOptions:
    """The options of every process of the cluster."""

    home: Path
    config: Path | None
    ca: list[str] | None
    join_token_file: Path | None
    dns: list[str] | None
    ip: list[str] | None
    pod_token_file: Path | None = None
    ca_anchors: Path | None = None

    def member(self, role: Role, name: str) -> Member:
        """The process ``name`` in ``role``.

        Raises:
            UsageError: the configuration is wrong, or the options contradict each other.
        """
        home, configuration = load_configuration(self.home, self.config)
        credential = join_credential(self.join_token_file, self.pod_token_file, self.ca_anchors)
        join = joining(self.ca, credential, self.dns, self.ip)
        return Member(home, configuration, join, role, name)


member_command = option_group(
    "options",
    MemberOptions,
    {
        "home": (HomeOption, DEFAULT_HOME),
        "config": (ConfigOption, None),
        "ca": (CaOption, None),
        "join_token_file": (TokenFileOption, None),
        "dns": (JoinDnsOption, None),
        "ip": (JoinIpOption, None),
        "pod_token_file": (PodTokenFileOption, None),
        "ca_anchors": (AnchorsOption, None),
    },
)
"""Gives a command these options in place of its parameter ``options``."""
