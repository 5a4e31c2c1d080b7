"""Finds the remedy for a machine that cannot give jobs private networks."""

from __future__ import annotations

from sluice.runtime.sandbox.remedies import CONTAINERS, Restrictions, remedy

WITHOUT = 'or let jobs reach everything: egress.mode = "off"'
_BY_COMPLAINT = {
    "SO_NETNS_COOKIE": "start it with Linux 5.14 or newer",
    "pidfd_getfd": f"as root add CAP_SYS_PTRACE; in a container use compose/seccomp.json (see {CONTAINERS})",
    "process_vm_readv": f"as root add CAP_SYS_PTRACE; in a container use compose/seccomp.json (see {CONTAINERS})",
    "root lacks": "add these capabilities, or run as an ordinary user",
    "a test program printed": "check that nothing else (such as kernel.yama.ptrace_scope = 3) forbids pidfd_getfd",
}


def network_remedy(complaint: str, found: Restrictions | None = None) -> str:
    """The remedy for the error ``complaint``, in one line."""
    known = next((what for text, what in _BY_COMPLAINT.items() if text in complaint), "")
    if not known:
        known = remedy(complaint, found or Restrictions.read()).partition(", or go without")[0]
    return f"{known}, {WITHOUT}"
