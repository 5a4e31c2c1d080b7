"""The relevant part of a pod as the API server reports it. Every field is bounded, and none is trusted."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sluice.core import printable
from sluice.runtime.gateways import DRAINED_EXIT_CODE
from sluice.runtime.jobmanager.pods.names import EPOCH_LABEL, epoch_of

MAX_REASON_CHARACTERS = 200
MAX_CONTAINERS = 32
MAX_CONDITIONS = 32

_NORMAL_REASONS = {"ContainerCreating", "PodInitializing", ""}
"""Reasons for waiting that are part of a normal start of a container."""


class Phase(enum.StrEnum):
    """The phases of a pod in Kubernetes; ``Unknown`` means that Kubernetes has lost the node."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod of the cluster at one resource version.

    Attributes:
        epoch: the epoch of the term in which it was made.
        deleting: whether its deletion was requested, whatever its phase.
        obstacle: why it does not start; empty when it has started, or nothing prevents it.
        end: why it failed; empty otherwise, also when its TaskManager was drained and has left.
    """

    name: str
    uid: str
    version: str
    epoch: int
    phase: Phase
    deleting: bool = False
    obstacle: str = ""
    end: str = ""

    @property
    def ended(self) -> bool:
        """Whether all of its containers have ended."""
        return self.phase in {Phase.SUCCEEDED, Phase.FAILED}

    @property
    def alive(self) -> bool:
        """Whether it runs a TaskManager, or may do so."""
        return not self.ended and not self.deleting


def observed_pod(content: dict[str, Any]) -> ObservedPod | None:
    """Parse an object of the API; None when it is not a readable pod."""
    metadata, status = _section(content, "metadata"), _section(content, "status")
    name, uid, version = (metadata.get(key) for key in ("name", "uid", "resourceVersion"))
    if not (isinstance(name, str) and isinstance(uid, str) and isinstance(version, str)):
        return None
    try:
        phase = Phase(status.get("phase") or Phase.PENDING)
    except ValueError:
        phase = Phase.UNKNOWN
    return ObservedPod(
        name=name,
        uid=uid,
        version=version,
        epoch=epoch_of(_section(metadata, "labels").get(EPOCH_LABEL)),
        phase=phase,
        deleting=metadata.get("deletionTimestamp") is not None,
        obstacle=_obstacle(status) if phase is Phase.PENDING else "",
        end=_end(status) if phase is Phase.FAILED else "",
    )


def one_line(*parts: object) -> str:
    """Untrusted text as one short line."""
    text = ": ".join(str(part)[: 4 * MAX_REASON_CHARACTERS] for part in parts if part)
    line = " ".join(printable(text, " ").split())
    return line if len(line) <= MAX_REASON_CHARACTERS else f"{line[: MAX_REASON_CHARACTERS - 1]}…"


def _obstacle(status: dict[str, Any]) -> str:
    for condition in _list(status, "conditions", MAX_CONDITIONS):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return one_line(condition.get("reason"), condition.get("message"))
    for state in _states(status, "waiting"):
        if state.get("reason", "") not in _NORMAL_REASONS:
            return one_line(state.get("reason"), state.get("message"))
    return ""


def _end(status: dict[str, Any]) -> str:
    if status.get("reason"):  # Evicted, NodeLost, …: the pod as a whole
        return one_line(status.get("reason"), status.get("message"))
    for state in _states(status, "terminated"):
        code = state.get("exitCode")
        if code == DRAINED_EXIT_CODE:
            return ""
        if code != 0:
            return one_line(
                f"{state.get('reason') or 'Error'}, exit code {state.get('exitCode')}", state.get("message")
            )
    return "no reason is given"


def _states(status: dict[str, Any], state: str) -> Iterator[dict[str, Any]]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        for each in _list(status, kind, MAX_CONTAINERS):
            found = _section(_section(each, "state"), state)
            if found:
                yield found


def _section(content: dict[str, Any], key: str) -> dict[str, Any]:
    found = content.get(key)
    return found if isinstance(found, dict) else {}


def _list(content: dict[str, Any], key: str, most: int) -> list[dict[str, Any]]:
    found = content.get(key)
    return [each for each in found[:most] if isinstance(each, dict)] if isinstance(found, list) else []
