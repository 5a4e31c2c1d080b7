"""Composes the Spark configuration of a driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.runtime.messages import DriverAssignment, JobKind
from sluice.runtime.spark.driver.spec import DriverSpec
from sluice.runtime.spark.errors import DriverFailed
from sluice.runtime.spark.jvm import (
    NO_PACKAGES,
    Packages,
    begin_conf,
    check_unreserved,
    connect_conf,
    default_conf,
    launcher_conf,
    seals,
    shuffle_conf,
    streaming_conf,
)


def driver_conf(
    spec: DriverSpec,
    job_conf: Mapping[str, str],
    spark_auth_secret: str,
    files: Sequence[Path],
    *,
    packages: Packages = NO_PACKAGES,
    extra: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The complete Spark configuration of a driver: defaults, the job's, the launcher's settings, and ``extra``.

    Later settings override earlier ones. Contains the job's secret.
    """
    work = Path(spec.work_dir)
    conf = {
        **default_conf(),
        **check_unreserved(job_conf),
        **launcher_conf(job_id=spec.job_id, name=spec.name, host=spec.host, shape=spec.shape),
        **begin_conf(job_conf),
        **(extra or {}),
        "spark.authenticate.secret": spark_auth_secret,
    }
    conf.setdefault("spark.sql.warehouse.dir", str(work / "warehouse"))
    return {**conf, **packages.conf(files)}


def kind_conf(assignment: DriverAssignment, host: str, connect_port: int = 0) -> dict[str, str]:
    """The settings for the kind of the job.

    Raises:
        DriverFailed: a Spark Connect session has no timeout.
    """
    shuffle = shuffle_conf(sealed=seals(assignment.seal)) if assignment.shuffle else {}
    if assignment.kind is not JobKind.CONNECT:
        return {**shuffle, **(streaming_conf(assignment.checkpoints) if assignment.checkpoints else {})}
    try:
        return {**shuffle, **connect_conf(host, float(assignment.args[0]), connect_port)}
    except (IndexError, ValueError) as error:
        raise DriverFailed("the Spark Connect session has no timeout", "start it over REST") from error
