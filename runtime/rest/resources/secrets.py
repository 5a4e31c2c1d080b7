"""Administration of job secrets. Values can be stored, but no route returns one."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.core import BodyTooLarge, read_body
from sluice.runtime.ha import EntryDamaged
from sluice.runtime.jobmanager.secrets import (
    MAX_VALUE_BYTES,
    Grant,
    GranteeKind,
    InvalidSecret,
    KeyRotation,
    SecretKeyMissing,
    SecretsFull,
    SecretUnknown,
    SecretView,
)
from sluice.runtime.messages import Message
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol import BINARY, BadRequest, Call, NoQuery, Nothing, Query, Route

_Grantee = Annotated[str, msgspec.Meta(max_length=256)]


class SecretList(Message, frozen=True):
    """All secrets, without their values."""

    secrets: tuple[SecretView, ...]


class VersionQuery(Query, frozen=True):
    """The version to remove; 0: the secret with all versions."""

    version: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0


class GrantQuery(Query, frozen=True, kw_only=True):
    """The grant to revoke."""

    kind: GranteeKind
    name: _Grantee
    owner: _Grantee = ""


class RotationOrder(Message, frozen=True):
    """The id of the key to use; empty: a new key, or the only key that is not in use."""

    key_id: Annotated[str, msgspec.Meta(max_length=64)] = ""


async def list_secrets(cluster: Cluster, call: Call[NoQuery]) -> SecretList:
    """List secrets with their versions and grants, without their values."""
    return SecretList(secrets=await cluster.secrets.list())


async def get_secret(cluster: Cluster, call: Call[NoQuery]) -> SecretView:
    """Get a secret with its versions and grants, without its values."""
    return await cluster.secrets.get(call.path["secret"])


async def put_secret(cluster: Cluster, call: Call[NoQuery]) -> SecretView:
    """Store a new version of a secret. The body is its value.

    Attempts that start from now on get it; running attempts keep the version that they have.
    """
    if call.request.content_type != BINARY:
        raise BadRequest(f"the body is {call.request.content_type[:80]}, not {BINARY}")
    try:
        value = await read_body(call.request.content, MAX_VALUE_BYTES)
    except BodyTooLarge as error:
        raise InvalidSecret("the value is too large", f"at most {MAX_VALUE_BYTES} bytes") from error
    return await cluster.secrets.put(call.path["secret"], value, call.who.name)


async def remove_secret(cluster: Cluster, call: Call[VersionQuery]) -> Nothing:
    """Remove a secret with its grants, or one version of it."""
    await cluster.secrets.remove(call.path["secret"], call.query.version)
    return Nothing()


async def grant_secret(cluster: Cluster, call: Call[NoQuery], body: Grant) -> SecretView:
    """Grant a secret to jobs of a role, a group or a user, or to a user's jobs with a certain name."""
    return await cluster.secrets.grant(call.path["secret"], body)


async def revoke_secret(cluster: Cluster, call: Call[GrantQuery]) -> SecretView:
    """Revoke a grant. Processes of jobs that start from now on do not get the secret through it."""
    query = call.query
    grant = Grant(kind=query.kind, name=query.name, owner=query.owner)
    return await cluster.secrets.revoke(call.path["secret"], grant)


async def rotate_secret_key(cluster: Cluster, call: Call[NoQuery], body: RotationOrder) -> KeyRotation:
    """Encrypt the data keys of all secrets with another key. Values and versions stay as they are."""
    return await cluster.secrets.rotate_key(body.key_id)


_PATH = "/v1/secrets/{secret}"
_ERRORS = (InvalidSecret, SecretUnknown, EntryDamaged)

ROUTES = (
    Route("GET", "/v1/secrets", "secrets.list", list_secrets, errors=(EntryDamaged,)),
    Route("GET", _PATH, "secrets.list", get_secret, errors=_ERRORS),
    Route(
        "POST",
        f"{_PATH}/versions",
        "secrets.put",
        put_secret,
        status=201,
        errors=(InvalidSecret, SecretsFull, SecretKeyMissing, EntryDamaged),
        binary=True,
    ),
    Route("DELETE", _PATH, "secrets.remove", remove_secret, errors=_ERRORS),
    Route("POST", f"{_PATH}/grants", "secrets.grant", grant_secret, errors=(*_ERRORS, SecretsFull)),
    Route("DELETE", f"{_PATH}/grants", "secrets.grant", revoke_secret, errors=_ERRORS),
    Route(
        "POST",
        "/v1/secret-keys/rotation",
        "secrets.rotate",
        rotate_secret_key,
        errors=(InvalidSecret, SecretKeyMissing, EntryDamaged),
    ),
)
