"""The directory in which a job's process finds its socket and its token files, and the names of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from sluice.core import make_private_directory
from sluice.pki.jwt import MAX_AUDIENCE_BYTES

MAX_TOKEN_FILES = 16
MAX_FILE_NAME_CHARACTERS = 64
MAX_ROLE_ARN_CHARACTERS = 2048
OTHERS_MAY_PASS = 0o711


class TokenFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file with a token for ``audience``, kept fresh, that every process of a job finds under ``name``.

    With ``aws_role_arn`` the clients of AWS in the job find it by themselves (``AssumeRoleWithWebIdentity``).
    """

    audience: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_AUDIENCE_BYTES)]
    name: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]
    aws_role_arn: Annotated[str, msgspec.Meta(pattern="^[!-~]*$", max_length=MAX_ROLE_ARN_CHARACTERS)] = ""


@dataclass(frozen=True, slots=True)
class WorkloadPlace:
    """A short directory that the process can read and not write."""

    directory: Path

    @property
    def socket(self) -> Path:
        """The SPIFFE Workload API."""
        return self.directory / "api.sock"

    @property
    def tokens(self) -> Path:
        """Token files."""
        return self.directory / "tokens"

    def make(self) -> None:
        """Create it; others may pass, not list."""
        for path in (self.directory, self.tokens):
            make_private_directory(path).chmod(OTHERS_MAY_PASS)

    def environment(self, files: Sequence[TokenFile] = ()) -> dict[str, str]:
        """Variables of the process (SPIFFE Workload Endpoint, section 4; AWS SDKs and Tools, "Web identity")."""
        environment = {"SPIFFE_ENDPOINT_SOCKET": f"unix://{self.socket}"}
        if files:
            environment["SLUICE_TOKEN_DIRECTORY"] = str(self.tokens)
        for file in files:
            if file.aws_role_arn and "AWS_ROLE_ARN" not in environment:
                environment["AWS_ROLE_ARN"] = file.aws_role_arn
                environment["AWS_WEB_IDENTITY_TOKEN_FILE"] = str(self.tokens / file.name)
        return environment
