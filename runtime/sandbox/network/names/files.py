"""The files for name resolution in a box."""

from __future__ import annotations

import socket
from collections.abc import Mapping

RESOLVER = "127.0.0.53"


def network_files(hosts: Mapping[str, str]) -> Mapping[str, bytes]:
    """Their contents by path; ``hosts``: addresses by name, besides ``localhost`` and this machine's name."""
    own = {socket.gethostname(): "127.0.0.1", **hosts}
    lines = ("127.0.0.1 localhost", "::1 localhost ip6-localhost", *(f"{own[name]} {name}" for name in own))
    return {
        "/etc/hosts": "".join(f"{line}\n" for line in lines).encode(),
        "/etc/resolv.conf": f"nameserver {RESOLVER}\noptions timeout:5 attempts:2\n".encode(),
    }
