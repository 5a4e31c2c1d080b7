"""The directory with the Workload API socket and the token files of a job's process, and their names."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from sluice.core import StoreError, bind_unix, make_private_directory
from sluice.pki.jwt import MAX_AUDIENCE_BYTES

MAX_TOKEN_FILES = 16
MAX_ROLE_ARN_CHARACTERS = 2048
GROUP_MAY_PASS = 0o710
GROUP_MAY_CONNECT = 0o660


class TokenFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file ``name`` with a current token for ``audience``, for every process of a job.

    With ``aws_role_arn``, AWS clients in the job find it by themselves (``AssumeRoleWithWebIdentity``).
    """

    audience: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_AUDIENCE_BYTES)]
    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]
    aws_role_arn: Annotated[str, msgspec.Meta(pattern="^[!-~]*$", max_length=MAX_ROLE_ARN_CHARACTERS)] = ""


@dataclass(frozen=True, slots=True)
class WorkloadPlace:
    """A directory with a short path that the process can read but not write.


    Attributes:
        directory: used by this process alone, and private before :meth:`make`.
        uid: the job's own user and group id; None: the job runs as this user.
    """

    directory: Path
    uid: int | None = None

    @property
    def socket(self) -> Path:
        """The socket of the SPIFFE Workload API."""
        return self.directory / "api.sock"

    @property
    def tokens(self) -> Path:
        """The directory of the token files."""
        return self.directory / "tokens"

    def make(self) -> None:
        """Create the directories. The job may traverse but not list them; other users may do neither."""
        for path in (self.directory, self.tokens):
            if self.uid is None:
                make_private_directory(path)
            elif not path.is_dir() or path.stat().st_gid != self.uid:
                os.chown(make_private_directory(path), -1, self.uid)
                path.chmod(GROUP_MAY_PASS)

    def environment(self, files: Sequence[TokenFile] = ()) -> dict[str, str]:
        """Environment of the process (SPIFFE Workload Endpoint, section 4; AWS SDKs and Tools, "Web identity")."""
        environment = {"SPIFFE_ENDPOINT_SOCKET": f"unix://{self.socket}"}
        if files:
            environment["SLUICE_TOKEN_DIRECTORY"] = str(self.tokens)
        for file in files:
            if file.aws_role_arn and "AWS_ROLE_ARN" not in environment:
                environment["AWS_ROLE_ARN"] = file.aws_role_arn
                environment["AWS_WEB_IDENTITY_TOKEN_FILE"] = str(self.tokens / file.name)
        return environment


def listen_for_job(place: WorkloadPlace) -> socket.socket:
    """Listen on the place's socket, to which only the job can connect; raises ``StoreError``."""
    place.make()
    listening = bind_unix(place.socket)
    try:
        if place.uid is not None:
            os.chown(place.socket, -1, place.uid)
            place.socket.chmod(GROUP_MAY_CONNECT)
        listening.listen()
    except OSError as error:
        listening.close()
        raise StoreError(f"cannot listen on {place.socket}: {error.strerror or error}") from error
    return listening
