"""What every box sees of the machine: programs, libraries, their settings, and the Python that runs this."""

from __future__ import annotations

import site
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from sluice.runtime.sandbox.mounts import Mount

_USR_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Directories that most distributions keep in /usr, with a link here."""
_STORES = ("/nix/store", "/gnu/store")
_ETC = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d"),
    *("localtime", "timezone", "locale.alias", "locale.conf", "os-release", "terminfo"),
    *("host.conf", "gai.conf", "services", "protocols", "networks", "ethertypes", "rpc"),
    *("ssl/certs", "ssl/openssl.cnf", "ca-certificates", "ca-certificates.conf"),
    *("pki/tls/certs", "pki/tls/openssl.cnf", "pki/ca-trust", "pki/java", "crypto-policies"),
    *("mime.types", "magic", "fonts", "python3"),
)
"""Nothing here is secret; keys (``ssl/private``), users and services are left out."""
_ETC_PATTERNS = ("java*", "python3.*")
_RESOLVED = ("resolv.conf", "hosts")
"""Often links to /run, or files mounted by a container runtime."""


def system_mounts(etc: Path = Path("/etc")) -> Iterator[Mount]:
    """The machine's programs and their settings, read-only."""
    yield Mount.read_only(Path("/usr"))
    for name in _USR_LINKS:
        path = Path(name)
        if path.is_symlink():
            yield Mount.link(path, str(path.readlink()))
        elif path.is_dir():
            yield Mount.read_only(path)
    yield from (Mount.read_only(Path(store)) for store in _STORES if Path(store).is_dir())
    found = dict.fromkeys(
        (*(etc / name for name in _ETC), *(p for each in _ETC_PATTERNS for p in sorted(etc.glob(each))))
    )
    for path in found:
        if path.exists():
            yield Mount.read_only(path, source=path.resolve())
    for name in _RESOLVED:
        source = (etc / name).resolve()
        if source.is_file():
            yield Mount.read_only(etc / name, source=source)


def python_paths() -> tuple[Path, ...]:
    """Where the running Python and its packages are, outside of what every box sees already."""
    wanted = [sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix]
    if site.ENABLE_USER_SITE:
        wanted.append(site.getusersitepackages())
    links = [str(link.parent.parent) for link in _links(Path(sys.executable)) if link.parent.name == "bin"]
    return outside_system(Path(path) for path in (*wanted, *links))


def java_paths(executable: Path) -> tuple[Path, ...]:
    """Where the Java of the command ``executable`` is, outside of what every box sees already (as in ``/opt``)."""
    homes = (link.parent.parent for link in _links(executable) if link.parent.name == "bin")
    return outside_system(homes)


def outside_system(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Those of ``paths`` that exist and are not below /usr; each also as it is without links."""
    found = dict.fromkeys(each for path in paths for each in (path.absolute(), path.resolve()))
    return tuple(path for path in found if path.is_dir() and not _in_system(path))


def _in_system(path: Path) -> bool:
    return path == Path("/") or any(path.is_relative_to(top) for top in ("/usr", *_USR_LINKS, *_STORES))


def _links(path: Path) -> Iterator[Path]:
    """``path``, and what each link on the way to the file names."""
    for _ in range(20):
        yield path.absolute()
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()
