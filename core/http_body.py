"""Read the whole body of an HTTP message, up to a limit.

One call of aiohttp's ``StreamReader.read(n)`` returns what has arrived so far, which may be any part of the body
(https://docs.aiohttp.org/en/stable/streams.html).
"""

from __future__ import annotations

import aiohttp

from sluice.core.errors import SluiceError


class BodyTooLarge(SluiceError):
    """A body is longer than its reader accepts."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes")
        self.limit = limit


async def read_body(content: aiohttp.StreamReader, limit: int) -> bytes:
    """The body of a request or an answer, from the first byte to the last (decompressed, if aiohttp does that).

    Args:
        content: the stream of the message.
        limit: the most bytes to accept. At most one byte more is read from the stream.

    Raises:
        BodyTooLarge: there is more than ``limit`` bytes.
        aiohttp.ClientPayloadError: the connection ended before the body did.
    """
    body = bytearray()
    while chunk := await content.read(limit + 1 - len(body)):
        body += chunk
        if len(body) > limit:
            raise BodyTooLarge(limit)
    return bytes(body)
