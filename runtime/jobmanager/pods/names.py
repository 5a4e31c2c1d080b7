"""Names and labels of the pods of a cluster. A leader recognizes its own pods, and those of earlier terms, by them."""

from __future__ import annotations

import re

CLUSTER_LABEL = "sluice/cluster"
MANAGED_BY_LABEL = "sluice/managed-by"
EPOCH_LABEL = "sluice/epoch"
MANAGED_BY = "resource-manager"
RANDOM_CHARACTERS = 10
MAX_EPOCH = (1 << 31) - 1

_EPOCH = re.compile(r"[0-9]{1,10}")


def pod_name(cluster: str, epoch: int, random: str) -> str:
    """The name of a new pod: at most 63 characters, because it is also a host name. ``random`` makes it unique."""
    return f"{_prefix(cluster, epoch)}{random}"


def is_of_term(name: str, cluster: str, epoch: int) -> bool:
    """Whether a pod of this name was made in this term."""
    return name.startswith(_prefix(cluster, epoch))


def labels_of(cluster: str, epoch: int) -> dict[str, str]:
    """The labels by which a cluster finds its pods."""
    return {CLUSTER_LABEL: cluster, MANAGED_BY_LABEL: MANAGED_BY, EPOCH_LABEL: str(epoch)}


def selector_of(cluster: str) -> str:
    """The label selector of all pods of a cluster, of any term."""
    return f"{CLUSTER_LABEL}={cluster},{MANAGED_BY_LABEL}={MANAGED_BY}"


def epoch_of(label: object) -> int:
    """The term in a label; 0 when it cannot be read."""
    if isinstance(label, str) and _EPOCH.fullmatch(label):
        return min(int(label), MAX_EPOCH)
    return 0


def _prefix(cluster: str, epoch: int) -> str:
    return f"{cluster}-tm-{epoch:x}-"
