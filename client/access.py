"""Finds the gateway, the authorities that verify it, and the credential for it, which is sent nowhere else."""

from __future__ import annotations

import enum
import json
import os
from dataclasses import dataclass
from pathlib import Path

from sluice.client import login_session
from sluice.client.errors import UnreachableError, UsageError
from sluice.client.token_binding import fingerprints, gateway_url, read_binding
from sluice.core import Home, StoreError, host_port, read_secret
from sluice.pki.authorities import bundle_file
from sluice.pki.x509 import AuthorityKind

TOKEN_VARIABLE = "SLUICE_TOKEN"  # noqa: S105  the name of a variable, not a token
SERVER_VARIABLE = "SLUICE_SERVER"
MAX_TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """Where the gateway is, which authorities verify it, and the credential to send."""

    url: str
    ca_file: Path | None
    token: str

    def __repr__(self) -> str:
        return f"GatewayAccess({self.url!r}, {self.ca_file!r})"


class CredentialSource(enum.Enum):
    """Where a credential comes from."""

    FILE = "file"
    VARIABLE = "variable"
    LOGIN = "login"


@dataclass(frozen=True, slots=True)
class GatewayCredential:
    """A credential for one gateway; ``file`` when it is in one."""

    source: CredentialSource
    secret: str
    file: Path | None = None

    def __repr__(self) -> str:
        return f"GatewayCredential({self.source}, {self.file!r})"


def resolve_access(
    home: Home, *, server: str | None = None, ca_file: Path | None = None, token_file: Path | None = None
) -> GatewayAccess:
    """Complete the command line's options from the environment and the local cluster in ``home``.

    Raises ``UsageError`` when ``server`` is no https URL, or no credential belongs to that gateway.
    """
    url, ca = locate_gateway(home, server, ca_file)
    return GatewayAccess(url, ca, held_credential(home, url, ca, token_file).secret)


def locate_gateway(home: Home, server: str | None, ca_file: Path | None) -> tuple[str, Path | None]:
    """URL and authorities (None: the system's) of the named gateway, or of the one in ``home``.

    Raises :class:`UsageError` when ``server`` is no https URL, or ``ca_file`` holds no certificate.
    """
    if ca_file is not None:
        try:
            fingerprints(ca_file)
        except StoreError as error:
            remedy = error.remedy or "name the certificate (PEM) of the gateway's authority with --ca"
            raise UsageError(error.what, remedy) from error
    if server:
        return gateway_url(server), ca_file
    return local_url(home), ca_file or edge_bundle(home)


def edge_bundle(home: Home) -> Path:
    """The authorities that verify the gateway of ``home``: all trusted edge ones, or the only one of an older home."""
    bundle = bundle_file(home.pki, AuthorityKind.EDGE)
    if bundle.exists():
        return bundle
    from sluice.pki.authorities import AuthorityStore  # late: it imports all of signing

    return AuthorityStore(home.pki).certificate_file(AuthorityKind.EDGE)


def local_url(home: Home) -> str:
    """The URL of the gateway of the cluster that runs in ``home``."""
    found = announced_url(home)
    if found is None and _is_closed(home.root):
        raise UsageError(
            f"you may not read {home.root}, the home of a cluster",
            "run this as its owner, or name gateway, authority and token: --server, --ca, --token-file",
        )
    if found is None:
        raise UnreachableError(
            f"no cluster is running in {home.root}", "start one with `sluice up`, or name the gateway with --server"
        )
    return found


def _is_closed(root: Path) -> bool:
    """Whether this user may not read ``root``, or a directory above it."""
    try:
        return root.is_dir() and not os.access(root, os.R_OK | os.X_OK)
    except PermissionError:
        return True


def announced_url(home: Home) -> str | None:
    """The URL of the gateway of ``home``; None: no cluster runs there."""
    try:
        address = json.loads((home.run / "endpoints" / "envoy.json").read_text())
    except (OSError, ValueError):
        return None
    return gateway_url(f"https://{host_port(address['host'], address['port'])}")


def held_credential(home: Home, url: str, ca_file: Path | None, token_file: Path | None) -> GatewayCredential:
    """The credential for the gateway at ``url``, which ``ca_file`` verifies.

    The first of: ``token_file``, for any gateway; ``SLUICE_TOKEN``, for ``SLUICE_SERVER``, or else the cluster of
    ``home``; the session of ``sluice login`` there; the token in ``home``, for the gateway that it was made for
    (:mod:`sluice.client.token_binding`).

    Raises :class:`~sluice.client.errors.UsageError` when there is none.
    """
    if token_file is not None:
        return _read(token_file)
    gateway = _Gateway(home, url, ca_file)
    refused: list[str] = []
    if secret := os.environ.get(TOKEN_VARIABLE, "").strip():
        if gateway.is_that_of_the_environment():
            return GatewayCredential(CredentialSource.VARIABLE, secret)
        refused.append(f"{TOKEN_VARIABLE} belongs to {os.environ.get(SERVER_VARIABLE) or 'the local cluster'}")
    if (signed_in := login_session.find(url)) is not None:
        if gateway.is_vouched_for_by(signed_in.authorities):
            return GatewayCredential(CredentialSource.LOGIN, signed_in.secret)
        refused.append("`sluice login` was at a gateway for which another authority vouches")
    path = home.root / "token"
    if path.exists():
        if gateway.owns(path):
            return _read(path)
        refused.append(f"{path} belongs to {_owner(path)}")
    raise _no_credential(home, url, refused)


@dataclass(frozen=True, slots=True)
class _Gateway:
    home: Home
    url: str
    ca_file: Path | None

    def is_local(self) -> bool:
        return self.url == announced_url(self.home)

    def is_that_of_the_environment(self) -> bool:
        """Whether a token in the environment belongs to this gateway."""
        named = os.environ.get(SERVER_VARIABLE, "").strip()
        return self.url == gateway_url(named) if named else self.is_local()

    def owns(self, token_file: Path) -> bool:
        """Whether the token in a file of the home belongs to this gateway."""
        binding = read_binding(token_file)
        if binding is None:
            return self.is_local() and self.is_vouched_for_by(())
        return (self.is_local() or self.url in binding.servers) and self.is_vouched_for_by(binding.authorities)

    def is_vouched_for_by(self, authorities: tuple[str, ...] | None) -> bool:
        """Whether only these authorities (None: the system's) and the home's edge authorities verify the gateway.

        A rotation in the home may have replaced the former by the latter.
        """
        if self.ca_file is None or authorities is None:
            return self.ca_file is None and authorities is None
        own = edge_bundle(self.home)
        trusted = frozenset(authorities) | (fingerprints(own) if own.exists() else frozenset())
        return fingerprints(self.ca_file) <= trusted


def _read(path: Path) -> GatewayCredential:
    if not path.exists():
        raise UsageError(f"there is no token file {path}", "see `sluice token create --output`")
    secret = read_secret(path, MAX_TOKEN_BYTES).decode("ascii", errors="replace").strip()
    return GatewayCredential(CredentialSource.FILE, secret, path)


def _owner(path: Path) -> str:
    binding = read_binding(path)
    return "the local cluster" if binding is None else " ".join(binding.servers) or "the local cluster"


def _no_credential(home: Home, url: str, refused: list[str]) -> UsageError:
    if refused:
        return UsageError(
            f"no API token for {url}: {'; '.join(refused)}",
            f"sign in there with `sluice login --server {url}`, or name its token with --token-file",
        )
    path = home.root / "token"
    return UsageError(
        f"no API token: neither {TOKEN_VARIABLE} nor {path}",
        "sign in with `sluice login`, or make one: "
        f"sluice token create {os.environ.get('USER', 'me')} --role submitter --home {home.root} --output {path}",
    )
