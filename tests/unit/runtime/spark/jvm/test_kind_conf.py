"""Settings that a job gets in addition to its own and the launcher's."""

from __future__ import annotations

import pytest

from sluice.runtime.messages import BlobRef, DriverAssignment, JobKind, Seal
from sluice.runtime.spark.driver.conf import kind_conf
from sluice.runtime.spark.jvm.conf import connect_conf, shuffle_conf


def assignment(*, shuffle: bool, kind: JobKind = JobKind.PIPELINE, seal: Seal = False) -> DriverAssignment:
    return DriverAssignment(
        pipeline=BlobRef("0" * 64, "job.py", 1),
        files=(),
        args=("60",),
        spark_conf={},
        spark_auth_secret="",
        blob_host="127.0.0.1",
        blob_port=1,
        kind=kind,
        shuffle=shuffle,
        seal=seal,
    )


def test_pipeline_keeps_sparks_own_shuffle_without_the_service() -> None:
    assert kind_conf(assignment(shuffle=False), "127.0.0.1") == {}


@pytest.mark.parametrize("kind", list(JobKind))
def test_every_kind_of_job_uses_the_shuffle_service(kind: JobKind) -> None:
    conf = kind_conf(assignment(shuffle=True, kind=kind), "127.0.0.1")
    assert shuffle_conf().items() <= conf.items()


def test_a_connect_session_also_gets_its_listener_settings() -> None:
    conf = kind_conf(assignment(shuffle=True, kind=JobKind.CONNECT), "127.0.0.1")
    assert conf == {**shuffle_conf(), **connect_conf("127.0.0.1", 60.0)}


@pytest.mark.parametrize(
    ("seal", "said"), [pytest.param(True, "true", id="on"), pytest.param(False, "false", id="off")]
)
def test_the_seal_setting_is_passed_to_jobs_that_use_the_shuffle_service(seal: Seal, said: str) -> None:
    assert kind_conf(assignment(shuffle=True, seal=seal), "127.0.0.1")["spark.sluice.shuffle.seal"] == said
    assert kind_conf(assignment(shuffle=False, seal=seal), "127.0.0.1") == {}
