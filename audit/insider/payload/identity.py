"""The job's own identity, which its code may use, and connections made with it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from .jvm import insider
from .reading import error_of
from .world import World

SECONDS = 10.0
_FILES = ("key.pem", "chain.pem")
_DIRECTORIES = ("identity", "identity-of-job")
"""Its directory names beside the working directory; the second if the job has its own user."""
_MAX_PLACES = 200


class NoIdentity(Exception):
    """The job's code sees no identity, not even its own."""


def read_own(world: World) -> tuple[bytes, bytes]:
    """Key and certificates of this driver or executor, as files or as its JVM sees them; raises :class:`NoIdentity`."""
    places = _places()
    errors = []
    for directory in places:
        try:
            key, chain = ((directory / name).read_bytes() for name in _FILES)
        except FileNotFoundError:
            continue
        except OSError as error:
            errors.append(f"{directory}: {error_of(error)}")
        else:
            return key, chain
    if world.spark is None:
        told = "; ".join(errors) or f"there is none beside {Path.cwd()} and the directories above, or mounted"
        raise NoIdentity(f"no identity of its own is in sight in {len(places)} directories: {told}")
    compiled = insider(world.spark)
    try:
        key, chain = (str(compiled.ownFile(name)).encode() for name in _FILES)
    except Exception as error:
        raise NoIdentity(f"the JVM sees no identity: {type(error).__name__}") from error
    return key, chain


def _places() -> list[Path]:
    """Possible places: beside the working directory and its parents, and mounts with such a name."""
    above = (Path.cwd(), *Path.cwd().parents)
    mounted: list[Path] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        mounted = [Path(line.split()[4]) for line in lines]
    found = [each / name for each in above for name in _DIRECTORIES]
    found += [each for each in mounted if each.name in _DIRECTORIES]
    return list(dict.fromkeys(found))[:_MAX_PLACES]


@contextlib.contextmanager
def connected(world: World, address: tuple[str, int], *alpn: str, own: bool = True) -> Iterator[ssl.SSLSocket]:
    """A TLS connection, with the job's own certificate or none; does not verify the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(alpn))
    if own:
        with tempfile.TemporaryDirectory() as directory:
            paths = [Path(directory, name) for name in _FILES]
            for path, content in zip(paths, read_own(world), strict=True):
                path.touch(0o600)
                path.write_bytes(content)
            context.load_cert_chain(paths[1], paths[0])
    with socket.create_connection(address, SECONDS) as raw, context.wrap_socket(raw) as secure:
        yield secure


def asked(
    secure: ssl.SSLSocket, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> tuple[int, bytes]:
    """Status and the beginning of the body of an answer over HTTP/1.1; OSError or HTTPException when there is none."""
    fields = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    secure.sendall(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
    response = http.client.HTTPResponse(secure, method=method)
    response.begin()
    return response.status, response.read(4096)
