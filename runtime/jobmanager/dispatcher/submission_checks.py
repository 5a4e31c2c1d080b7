"""Checks of submissions: names, sizes, files and settings."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sluice.runtime.blob import InvalidBlobName, check_file_name
from sluice.runtime.jobmanager.errors import SubmissionRejected
from sluice.runtime.messages import JobSubmission
from sluice.runtime.spark import SETTING, check_python
from sluice.runtime.spark.jvm import MINIMUM_EXECUTOR_MEMORY_MB, check_job_conf, check_packages

MAX_JOB_NAME_CHARACTERS = 200
MAX_ARGUMENTS = 1000
MAX_ARGUMENTS_CHARACTERS = 256 << 10
"""Most characters in all arguments of a pipeline together."""
MAX_EXECUTORS = 1000
MAX_EXECUTOR_CORES = 1024
MAX_EXECUTOR_MEMORY_MB = 8 << 20


def check_executor_size(cores: int, memory_mb: int) -> None:
    """Raise :class:`SubmissionRejected` when no executor can have this size; 0 is the cluster's default."""
    if not 0 <= cores <= MAX_EXECUTOR_CORES:
        raise SubmissionRejected(f"executors of {cores} cores", f"ask for 1 to {MAX_EXECUTOR_CORES}")
    if memory_mb and not MINIMUM_EXECUTOR_MEMORY_MB <= memory_mb <= MAX_EXECUTOR_MEMORY_MB:
        raise SubmissionRejected(
            f"executors of {memory_mb} MiB", f"ask for {MINIMUM_EXECUTOR_MEMORY_MB} to {MAX_EXECUTOR_MEMORY_MB}"
        )


def check_submission(submission: JobSubmission, allow_conf: Sequence[str] = ()) -> JobSubmission:
    """Return a vetted copy.

    Args:
        allow_conf: Spark settings that the operator allows in addition.

    Raises:
        SubmissionRejected: a name, size, file or argument that is not acceptable.
        ForbiddenSparkConf: a Spark setting that a job may not make.
    """
    name = submission.name
    if not name or len(name) > MAX_JOB_NAME_CHARACTERS or not name.isprintable():
        raise SubmissionRejected(
            f"{name[:80]!r} is not a job name", f"1 to {MAX_JOB_NAME_CHARACTERS} printable characters"
        )
    if not 1 <= submission.executors <= MAX_EXECUTORS:
        raise SubmissionRejected(f"{submission.executors} executors", f"ask for 1 to {MAX_EXECUTORS}")
    check_executor_size(submission.executor_cores, submission.executor_memory_mb)
    if len(submission.args) > MAX_ARGUMENTS or sum(map(len, submission.args)) > MAX_ARGUMENTS_CHARACTERS:
        raise SubmissionRejected(
            "too many arguments", f"at most {MAX_ARGUMENTS} with {MAX_ARGUMENTS_CHARACTERS} characters"
        )
    if any("\0" in argument for argument in submission.args):
        raise SubmissionRejected("an argument contains a zero character")
    try:
        names = [check_file_name(ref.name) for ref in submission.blobs]
    except InvalidBlobName as error:
        raise SubmissionRejected(error.what, error.remedy) from error
    if len(set(names)) != len(names):
        raise SubmissionRejected("two files of the submission have the same name", "rename one of them")
    check_packages(submission)
    python = _python(submission)
    spark_conf = {key: value for key, value in submission.spark_conf.items() if key != SETTING}
    return msgspec.structs.replace(submission, spark_conf=check_job_conf(spark_conf, allow_conf), python=python)


def _python(submission: JobSubmission) -> str:
    """The job's own Python, from our setting or from Spark's; empty for the cluster's."""
    named = {submission.python, submission.spark_conf.get(SETTING, "")} - {""}
    if len(named) > 1:
        raise SubmissionRejected(f"two Pythons: {' and '.join(sorted(each[:80] for each in named))}", "name one")
    return check_python(named.pop(), submission.archives) if named else ""
