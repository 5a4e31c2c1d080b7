"""Reading and writing the presentation language of TLS (RFC 8446, section 3); every length is checked."""

from __future__ import annotations

from sluice.audit.errors import WireError


class Reader:
    """Parses data of a peer; too little or too much is a :class:`WireError`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        if count > self.left:
            raise WireError(f"a structure of {count} bytes has only {self.left}")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int) -> int:
        """An unsigned integer of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        """A vector whose length has ``size`` bytes."""
        return self.take(self.number(size))

    def end(self) -> None:
        """Nothing may be left."""
        if self.left:
            raise WireError(f"{self.left} bytes follow where a structure should end")


def number(value: int, size: int) -> bytes:
    """An unsigned integer of ``size`` bytes."""
    return value.to_bytes(size, "big")


def vector(data: bytes, size: int) -> bytes:
    """``data`` behind its length of ``size`` bytes."""
    return number(len(data), size) + data


def numbers(values: tuple[int, ...], *, size: int, length: int) -> bytes:
    """A vector of integers of ``size`` bytes each behind a length of ``length`` bytes."""
    return vector(b"".join(number(value, size) for value in values), length)


def read_extensions(reader: Reader) -> dict[int, bytes]:
    """The extensions block that ends a structure; none at all is empty, one twice is an error (RFC 8446, 4.2)."""
    found: dict[int, bytes] = {}
    if reader.left == 0:
        return found
    block = Reader(reader.vector(2))
    while block.left:
        kind = block.number(2)
        if kind in found:
            raise WireError(f"extension {kind} comes twice")
        found[kind] = block.vector(2)
    return found
