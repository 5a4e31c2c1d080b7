"""Hosts and ports as they are written in URLs and in lists of addresses."""

from __future__ import annotations

import ipaddress


def is_ip_address(text: str) -> bool:
    """Whether ``text`` is an IP address and not a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def url_host(host: str) -> str:
    """``host`` as in a URL: an IPv6 address in brackets (RFC 3986, section 3.2.2)."""
    return f"[{host}]" if ":" in host else host


def host_port(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"{url_host(host)}:{port}"
