"""Finds the remedy for a sandbox that cannot be started, from bubblewrap's error and the kernel's settings."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

WITHOUT = 'or go without: isolation.level = "none"'
CONTAINERS = "docs/howto/containers.md"
_SYSTEM = Path("/proc/sys")
_CONTAINER_FILES = (Path("/.dockerenv"), Path("/run/.containerenv"))


@dataclass(frozen=True, slots=True)
class Restrictions:
    """The detected restrictions that keep processes from creating namespaces on this machine."""

    container: bool = False
    apparmor: bool = False
    """AppArmor allows user namespaces only to programs whose profile permits them (Ubuntu 23.10 and later)."""
    no_unprivileged: bool = False
    """``kernel.unprivileged_userns_clone`` is 0 (older Debian, hardened kernels)."""
    none_left: bool = False
    """``user.max_user_namespaces`` is 0."""

    @classmethod
    def read(cls) -> Restrictions:
        """Read the restrictions of this machine."""
        return cls(
            container=any(each.exists() for each in _CONTAINER_FILES) or "container" in os.environ,
            apparmor=_setting("kernel/apparmor_restrict_unprivileged_userns") == "1",
            no_unprivileged=_setting("kernel/unprivileged_userns_clone") == "0",
            none_left=_setting("user/max_user_namespaces") == "0",
        )


_BY_COMPLAINT = {
    "nknown option": "install bubblewrap 0.8 or newer, or leave isolation.bwrap empty",
    "Permission denied: '": "install Python and Sluice where every user may read and run them (not below /root)",
    "mount proc": f"show the container all of /proc (systempaths=unconfined, see {CONTAINERS})",
}


def remedy(complaint: str, found: Restrictions) -> str:
    """The remedy for the bubblewrap error ``complaint``, in one line."""
    known = next((what for text, what in _BY_COMPLAINT.items() if text in complaint), "")
    return f"{known or _by_settings(found)}, {WITHOUT}"


def _by_settings(found: Restrictions) -> str:
    if found.none_left:
        return "sysctl -w user.max_user_namespaces=15000"
    if found.no_unprivileged:
        return "sysctl -w kernel.unprivileged_userns_clone=1"
    if found.container:
        return f"give the container compose/seccomp.json and systempaths=unconfined (see {CONTAINERS})"
    if found.apparmor:
        return (
            "give bwrap an AppArmor profile that allows user namespaces, or "
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
        )
    return "it needs a kernel with user namespaces; install the distribution's bubblewrap"


def _setting(name: str) -> str:
    try:
        return (_SYSTEM / name).read_text().strip()
    except OSError:
        return ""
