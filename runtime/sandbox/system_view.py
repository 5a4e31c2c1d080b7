"""The parts of the machine that every box sees: programs, libraries, their settings, and the running Python."""

from __future__ import annotations

import site
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from sluice.runtime.sandbox.mounts import Mount

_USR_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Directories that most distributions replace by a link into /usr."""
_STORES = ("/nix/store", "/gnu/store")
_ETC_DIRECTORIES = (
    "alternatives",
    "ssl/certs",
    "pki/tls/certs",
    "pki/ca-trust",
    "pki/java",
    "fonts",
    "crypto-policies",
)
"""Directories in /etc without secrets; keys (``ssl/private``) are left out."""
_ETC_PATTERNS = ("java*",)
_ETC_FILES = (
    *("ld.so.cache", "localtime", "timezone", "locale.alias", "locale.conf", "os-release"),
    *("hosts", "resolv.conf", "host.conf", "gai.conf", "services", "protocols", "networks"),
    *("ssl/openssl.cnf", "pki/tls/openssl.cnf", "mime.types"),
)
MAX_FILE_BYTES = 1 << 20


def system_mounts(etc: Path = Path("/etc")) -> Iterator[Mount]:
    """Read-only mounts of the machine's programs and of directories with their settings."""
    yield Mount.read_only(Path("/usr"))
    for name in _USR_LINKS:
        path = Path(name)
        if path.is_symlink():
            yield Mount.link(path, str(path.readlink()))
        elif path.is_dir():
            yield Mount.read_only(path)
    yield from (Mount.read_only(Path(store)) for store in _STORES if Path(store).is_dir())
    found = (*(etc / name for name in _ETC_DIRECTORIES), *(path for each in _ETC_PATTERNS for path in etc.glob(each)))
    for path in sorted(found):
        if path.is_dir():
            yield Mount.read_only(path, source=path.resolve())


def system_files(etc: Path = Path("/etc")) -> tuple[Path, ...]:
    """Small files with settings of the machine. A box gets copies, because a mount of each takes milliseconds.

    Some are links to /run, or mounted by a container runtime.
    """
    return tuple(etc / name for name in _ETC_FILES if (etc / name).is_file())


def content_of(file: Path) -> bytes:
    """The content of ``file`` for a box; empty if the file is gone, too large or unreadable."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError:
        return b""
    return content if len(content) <= MAX_FILE_BYTES else b""


def python_paths() -> tuple[Path, ...]:
    """The paths of the running Python and its packages that :func:`system_mounts` does not cover."""
    wanted = [sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix]
    if site.ENABLE_USER_SITE:
        wanted.append(site.getusersitepackages())
    links = [link.parent.parent for link in _links(Path(sys.executable)) if link.parent.name == "bin"]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    installed = (top for top in links if (top / "pyvenv.cfg").is_file() or (top / "lib" / version).is_dir())
    return outside_system((*map(Path, wanted), *installed))


def java_paths(executable: Path) -> tuple[Path, ...]:
    """The paths of the Java of ``executable`` that :func:`system_mounts` does not cover, such as in ``/opt``."""
    links = (link.parent.parent for link in _links(executable) if link.parent.name == "bin")
    return outside_system(top for top in links if (top / "lib" / "modules").is_file())


def outside_system(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The ``paths`` that are directories outside the system mounts, each also with its links resolved."""
    found = dict.fromkeys(each for path in paths for each in (path.absolute(), path.resolve()))
    return tuple(path for path in found if path.is_dir() and not _in_system(path))


def _in_system(path: Path) -> bool:
    return path == Path("/") or any(path.is_relative_to(top) for top in ("/usr", *_USR_LINKS, *_STORES))


def _links(path: Path) -> Iterator[Path]:
    """``path``, and the target of each link in its chain of links."""
    for _ in range(20):
        yield path.absolute()
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()
