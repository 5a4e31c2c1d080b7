"""What to do where a machine cannot make a sandbox, from what bubblewrap says and from the kernel's settings."""

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
    """What keeps processes from making namespaces on this machine, as far as it shows."""

    container: bool = False
    apparmor: bool = False
    """AppArmor allows user namespaces only to programs with a profile that says so (Ubuntu 23.10 and later)."""
    no_unprivileged: bool = False
    """``kernel.unprivileged_userns_clone`` is 0 (older Debian, hardened kernels)."""
    none_left: bool = False
    """``user.max_user_namespaces`` is 0."""

    @classmethod
    def read(cls) -> Restrictions:
        """Those of this machine."""
        return cls(
            container=any(each.exists() for each in _CONTAINER_FILES) or "container" in os.environ,
            apparmor=_setting("kernel/apparmor_restrict_unprivileged_userns") == "1",
            no_unprivileged=_setting("kernel/unprivileged_userns_clone") == "0",
            none_left=_setting("user/max_user_namespaces") == "0",
        )


def remedy(complaint: str, found: Restrictions) -> str:
    """What to do when bubblewrap has said ``complaint``; one line, the likeliest cause first."""
    if "mount proc" in complaint:
        return f"show the container all of /proc (systempaths=unconfined, see {CONTAINERS}), {WITHOUT}"
    if found.none_left:
        return f"sysctl -w user.max_user_namespaces=15000, {WITHOUT}"
    if found.no_unprivileged:
        return f"sysctl -w kernel.unprivileged_userns_clone=1, {WITHOUT}"
    if found.container:
        return f"give the container compose/seccomp.json and systempaths=unconfined (see {CONTAINERS}), {WITHOUT}"
    if found.apparmor:
        return (
            "give bwrap an AppArmor profile that allows user namespaces, or "
            f"sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, {WITHOUT}"
        )
    return f"it needs a kernel with user namespaces; install the distribution's bubblewrap, {WITHOUT}"


def _setting(name: str) -> str:
    try:
        return (_SYSTEM / name).read_text().strip()
    except OSError:
        return ""
