"""HTTP clients that resolve names like every other program of the machine."""

from __future__ import annotations

from ssl import SSLContext

import aiohttp


def tcp_connector(*, ssl: SSLContext | bool = True, force_close: bool = False) -> aiohttp.TCPConnector:
    """A connector that asks ``getaddrinfo``: it follows nsswitch.conf, and errors are those of the C library.

    aiohttp's own default is c-ares wherever aiodns is installed, which the egress gateway needs.
    """
    return aiohttp.TCPConnector(ssl=ssl, force_close=force_close, resolver=aiohttp.ThreadedResolver())
