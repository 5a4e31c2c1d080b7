"""The machine's trust stores: finding them, listing our authorities in them, installing and removing authorities.

It covers the system's store, NSS databases (Firefox, Chrome) and Java's ``cacerts``, each with its own tools. It first
makes a plan of steps, which can be shown and then run; it only removes entries with our name.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from sluice.core import PkiError, StoreError, write_public
from sluice.pki.authorities import to_pem
from sluice.pki.x509 import AuthorityKind

TOOL_SECONDS = 120.0
"""How long one tool may take; update-ca-certificates runs hooks of other packages."""
MAX_NSS_DATABASES = 32
JAVA_PASSWORD = "changeit"  # noqa: S105  what every Java has; it keeps nothing secret
PREFIX = "sluice-"
_OURS = re.compile(r"sluice-(?:root|edge)-[0-9a-f]{16}")


class StoreKind(enum.StrEnum):
    """Whose trust store."""

    SYSTEM = "system"
    NSS = "nss"
    JAVA = "java"


class TrustToolError(PkiError):
    """A tool of a trust store failed."""


@dataclass(frozen=True, slots=True)
class _System:
    """A distribution's directory for local authorities, and the tool that installs them."""

    directory: str
    command: tuple[str, ...]
    suffix: str = ".pem"


_SYSTEMS = (
    _System("etc/pki/ca-trust/source/anchors", ("update-ca-trust", "extract")),  # Red Hat, Fedora, Amazon
    _System("usr/local/share/ca-certificates", ("update-ca-certificates",), ".crt"),  # Debian, Ubuntu, Alpine
    _System("etc/ca-certificates/trust-source/anchors", ("trust", "extract-compat")),  # Arch
    _System("usr/share/pki/trust/anchors", ("update-ca-certificates",)),  # SUSE
)

Run = Callable[[Sequence[str], Mapping[str, str]], str]
"""Runs a command with additional environment; returns its output, raises :class:`TrustToolError`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Access to the machine.

    Attributes:
        root: of the file system.
        home: of the user, for NSS databases.
        environ: for ``JAVA_HOME``.
        which: finds a command; None: missing.
        run: runs a command.
    """

    root: Path
    home: Path
    environ: Mapping[str, str]
    which: Callable[[str], str | None]
    run: Run


def this_machine() -> Machine:
    """The real machine."""
    return Machine(Path("/"), Path.home(), os.environ, shutil.which, _run)


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its description, and the action."""

    says: str
    act: Callable[[], object] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TrustPlace:
    """One trust store of this machine.

    Attributes:
        kind: whose.
        where: a directory, database or file.
        tool: what changes it.
    """

    kind: StoreKind
    where: Path
    tool: tuple[str, ...]
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.where}"


def name_of(kind: AuthorityKind, certificate: x509.Certificate) -> str:
    """The name of an authority in a store, which distinguishes generations."""
    return f"{PREFIX}{kind}-{certificate.fingerprint(hashes.SHA256()).hex()[:16]}"


def find_places(machine: Machine) -> list[TrustPlace]:
    """Every store whose tools are on this machine."""
    places = []
    for system in _SYSTEMS:
        directory = machine.root / system.directory
        tool = machine.which(system.command[0])
        if directory.is_dir() and tool is not None:
            places.append(TrustPlace(StoreKind.SYSTEM, directory, (tool, *system.command[1:]), system.suffix))
            break
    if (certutil := machine.which("certutil")) is not None:
        places += [TrustPlace(StoreKind.NSS, each, (certutil,)) for each in _nss_databases(machine.home)]
    places += _java_places(machine)
    return places


def installed(place: TrustPlace, machine: Machine) -> list[str]:
    """Our names in a store, sorted."""
    match place.kind:
        case StoreKind.SYSTEM:
            found = [path.name.removesuffix(place.suffix) for path in place.where.glob(f"{PREFIX}*{place.suffix}")]
        case StoreKind.NSS:
            found = [line.split()[0] for line in _certutil(place, machine, "-L").splitlines() if line.strip()]
        case StoreKind.JAVA:
            output = machine.run((*_keytool(place), "-list"), _JAVA)
            found = [line.split(",")[0].strip() for line in output.splitlines()]
    return sorted(name for name in found if _OURS.fullmatch(name))


def plan_install(
    places: Sequence[TrustPlace], authorities: Mapping[str, x509.Certificate], machine: Machine
) -> list[Step]:
    """The steps so that every store has ``authorities`` (by :func:`name_of`); none when it has."""
    steps = []
    for place in places:
        missing = {name: each for name, each in authorities.items() if name not in installed(place, machine)}
        steps += [_add(place, name, certificate, machine) for name, certificate in missing.items()]
        if missing and place.kind is StoreKind.SYSTEM:
            steps.append(_rebuild(place, machine))
    return steps


def plan_removal(places: Sequence[TrustPlace], names: Callable[[str], bool], machine: Machine) -> list[Step]:
    """The steps so that no store has any of our names that ``names`` selects."""
    steps = []
    for place in places:
        present = [name for name in installed(place, machine) if names(name)]
        steps += [_remove(place, name, machine) for name in present]
        if present and place.kind is StoreKind.SYSTEM:
            steps.append(_rebuild(place, machine))
    return steps


def _add(place: TrustPlace, name: str, certificate: x509.Certificate, machine: Machine) -> Step:
    pem = to_pem(certificate)
    if place.kind is StoreKind.SYSTEM:
        path = place.where / f"{name}{place.suffix}"
        return Step(f"write {path}", lambda: write_public(path, pem))

    def add() -> None:
        with _file_with(pem) as file:
            if place.kind is StoreKind.NSS:
                # C: trusted only to certify servers.
                _certutil(place, machine, "-A", "-t", "C,,", "-n", name, "-i", str(file))
            else:
                machine.run((*_keytool(place), "-importcert", "-noprompt", "-alias", name, "-file", str(file)), _JAVA)

    return Step(f"add {name} to {place}", add)


def _remove(place: TrustPlace, name: str, machine: Machine) -> Step:
    match place.kind:
        case StoreKind.SYSTEM:
            path = place.where / f"{name}{place.suffix}"
            return Step(f"remove {path}", lambda: _unlink(path))
        case StoreKind.NSS:
            return Step(f"remove {name} from {place}", lambda: _certutil(place, machine, "-D", "-n", name))
        case StoreKind.JAVA:
            command = (*_keytool(place), "-delete", "-alias", name)
            return Step(f"remove {name} from {place}", lambda: machine.run(command, _JAVA))


def _rebuild(place: TrustPlace, machine: Machine) -> Step:
    return Step(f"run {' '.join(place.tool)}", lambda: machine.run(place.tool, {}))


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"cannot remove {path}: {error.strerror or error}", "run it as root: sudo") from error


def _nss_databases(home: Path) -> list[Path]:
    """Databases in the current format (``cert9.db``) of this user's programs."""
    patterns = (
        ".pki/nssdb/cert9.db",
        ".mozilla/firefox/*/cert9.db",
        "snap/firefox/common/.mozilla/firefox/*/cert9.db",
        "snap/chromium/current/.pki/nssdb/cert9.db",
    )
    found = sorted({path.parent for pattern in patterns for path in home.glob(pattern)})
    return found[:MAX_NSS_DATABASES]


def _java_places(machine: Machine) -> Iterator[TrustPlace]:
    """The store of ``JAVA_HOME``, or else of the ``keytool`` that is found, once."""
    candidates = []
    if java_home := machine.environ.get("JAVA_HOME"):
        candidates.append(Path(java_home))
    if (keytool := machine.which("keytool")) is not None:
        candidates.append(Path(keytool).resolve().parent.parent)
    for directory in candidates:
        tool, store = directory / "bin" / "keytool", directory / "lib" / "security" / "cacerts"
        if tool.is_file() and store.is_file():
            yield TrustPlace(StoreKind.JAVA, store.resolve(), (str(tool),))
            return


_JAVA = {"SLUICE_CACERTS_PASSWORD": JAVA_PASSWORD}


def _keytool(place: TrustPlace) -> tuple[str, ...]:
    return (*place.tool, "-J-Duser.language=en", "-keystore", str(place.where), "-storepass:env", *_JAVA)


def _certutil(place: TrustPlace, machine: Machine, *arguments: str) -> str:
    return machine.run((*place.tool, "-d", f"sql:{place.where}", *arguments), {})


@contextlib.contextmanager
def _file_with(pem: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sluice-trust-") as directory:
        path = Path(directory) / "authority.pem"
        path.write_bytes(pem)
        yield path


def _run(command: Sequence[str], environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=TOOL_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environ},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TrustToolError(f"{command[0]} could not be run: {error}", "is it installed whole?") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise TrustToolError(
            f"{Path(command[0]).name} ended with {done.returncode}: {said[-1][:300] if said else 'it said nothing'}",
            "it may need root: sudo",
        )
    return done.stdout
