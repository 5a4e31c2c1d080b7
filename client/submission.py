"""A submission: a pipeline, its files, and the ``request`` part of ``POST /v1/jobs``. Values only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.client.errors import UsageError

_MEMORY = re.compile(r"([0-9]{1,9})(m|mb|mib|g|gb|gib|)")
_PLAIN = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
_SECRET = re.compile(rf"(?P<name>{_PLAIN})(@(?P<version>[1-9][0-9]{{0,8}}))?(=(?P<file>{_PLAIN}))?")
_MEBIBYTES = {"": 1, "m": 1, "mb": 1, "mib": 1, "g": 1024, "gb": 1024, "gib": 1024}


@dataclass(frozen=True, slots=True)
class Submission:
    """A pipeline as :meth:`sluice.client.rest_client.GatewayClient.submit` takes it.

    ``files`` are pairs of the multipart part (``file``, ``py_file``, ``archive``) and a path.
    """

    pipeline: Path
    request: Mapping[str, object]
    files: tuple[tuple[str, Path], ...] = ()


def build_submission(
    pipeline: Path,
    args: Iterable[str] = (),
    *,
    name: str = "",
    executors: int | None = None,
    executor_cores: int | None = None,
    executor_memory: str | None = None,
    spark_conf: Mapping[str, str] | None = None,
    files: Sequence[Path] = (),
    py_files: Sequence[Path] = (),
    archives: Sequence[str] = (),
    python: str = "",
    restart: Mapping[str, Any] | None = None,
    savepoint: str = "",
    secrets: Sequence[str] = (),
    executor_secrets: Sequence[str] = (),
    token_files: Mapping[str, str] | None = None,
    aws_role_arn: str = "",
    queue: str = "",
    priority: int = 0,
) -> Submission:
    """Check the files and build the request; the cluster decides what is not given.

    Args:
        archives: each ``FILE`` or ``FILE#DIRECTORY``.
        secrets: for the driver, each ``NAME``, ``NAME=FILE`` or ``NAME@VERSION=FILE``.
        executor_secrets: the same for driver and executors.
        executor_memory: such as ``2g``, ``1536m``, or a number of mebibytes.
        token_files: file name -> audience of the token in that file.
        aws_role_arn: the role that clients of AWS in the job take with the first of these tokens.
        queue: whose share of the slots the executors count towards.
        priority: in that queue.

    Raises:
        UsageError: there is no such file, or ``executor_memory`` is not an amount of memory.
    """
    require_pipeline(pipeline)
    parts, archive_names = upload_parts(files, py_files, archives)
    optional: dict[str, object] = {
        "name": name,
        "python": python,
        "executors": executors,
        "executor_cores": executor_cores,
        "executor_memory_mb": None if executor_memory is None else memory_mb(executor_memory),
        "archive_names": archive_names,
        "savepoint": savepoint,
        "restart": dict(restart or {}),
        "secrets": secret_references(secrets, executor_secrets),
        "token_files": _token_files(token_files or {}, aws_role_arn),
        "queue": queue,
        "priority": priority or None,
    }
    request: dict[str, object] = {"args": list(args), "spark_conf": dict(spark_conf or {})}
    request |= {key: value for key, value in optional.items() if value not in (None, "", {}, [])}
    return Submission(pipeline, request, tuple(parts))


def secret_references(secrets: Sequence[str], executor_secrets: Sequence[str]) -> list[dict[str, object]]:
    """The references for the request; raises :class:`UsageError`."""
    return [
        *(secret_reference(each) for each in secrets),
        *({**secret_reference(each), "executors": True} for each in executor_secrets),
    ]


def secret_reference(text: str) -> dict[str, object]:
    """Parse ``NAME[@VERSION][=FILE]`` for the request; raises :class:`UsageError`."""
    match = _SECRET.fullmatch(text)
    if match is None:
        raise UsageError(f"{text[:80]!r} does not name a secret", "write NAME, NAME=FILE or NAME@VERSION=FILE")
    reference: dict[str, object] = {"name": match["name"]}
    if match["version"]:
        reference["version"] = int(match["version"])
    if match["file"]:
        reference["file"] = match["file"]
    return reference


def _token_files(files: Mapping[str, str], aws_role_arn: str) -> list[dict[str, str]]:
    if aws_role_arn and not files:
        raise UsageError("a role of AWS without a token file", "name the audience of the token: --identity-token")
    wanted = [{"name": name, "audience": audience} for name, audience in files.items()]
    if aws_role_arn:
        wanted[0]["aws_role_arn"] = aws_role_arn
    return wanted


def require_pipeline(pipeline: Path) -> None:
    """Raise :class:`UsageError` when there is no such file."""
    if not pipeline.is_file():
        raise UsageError(f"there is no file {pipeline}", "name a Python file with a PySpark pipeline")


def upload_parts(
    files: Iterable[Path], py_files: Iterable[Path], archives: Iterable[str]
) -> tuple[list[tuple[str, Path]], dict[str, str]]:
    """The parts of the upload (part, file), and the directories of the archives that name one.

    Raises:
        UsageError: there is no such file.
    """
    parts = [("file", file) for file in files]
    parts += [("py_file", file) for file in py_files]
    names: dict[str, str] = {}
    for text in archives:
        file, _, name = text.partition("#")
        parts.append(("archive", Path(file)))
        if name:
            names[Path(file).name] = name
    for _, path in parts:
        if not path.is_file():
            raise UsageError(f"there is no file {path}", "a directory is packed first: zip or tar.gz")
    return parts, names


def memory_mb(text: str) -> int:
    """Mebibytes of a size as Spark writes it: ``1536m``, ``2g``, or a plain number of mebibytes."""
    match = _MEMORY.fullmatch(text.strip().lower())
    if match is None or not int(match[1]):
        raise UsageError(f"{text!r} is not an amount of memory", "write 1536m or 2g")
    return int(match[1]) * _MEBIBYTES[match[2]]
