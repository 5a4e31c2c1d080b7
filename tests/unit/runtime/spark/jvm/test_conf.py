"""Tests of which Spark settings a job may make, and which are refused."""

from __future__ import annotations

import pytest

from sluice.runtime.node.leader_finder import LeaderDiscovery
from sluice.runtime.spark.driver.conf import driver_conf
from sluice.runtime.spark.driver.spec import DriverSpec
from sluice.runtime.spark.errors import ForbiddenSparkConf
from sluice.runtime.spark.jvm.conf import (
    SHUFFLE_PACKAGE,
    DriverShape,
    default_conf,
    executor_startup_conf,
    launcher_conf,
    security_conf,
    shuffle_conf,
)
from sluice.runtime.spark.jvm.job_conf import check_job_conf, reserved_by
from sluice.runtime.spark.plugin_build import plugin_sources

TOKEN = b"token"
SHAPE = DriverShape(executors=3, executor_cores=1, executor_memory_mb=768, driver_memory_mb=512)


def test_defaults_are_settings_a_job_may_make() -> None:
    assert check_job_conf(default_conf()) == default_conf()


def test_launcher_settings_are_reserved_except_for_the_application_name() -> None:
    """Every launcher setting that a job could misuse is forbidden to jobs."""
    for key in launcher_conf(job_id="0" * 32, name="n", host="127.0.0.1", shape=SHAPE):
        assert key == "spark.app.name" or reserved_by(key) is not None


def test_driver_conf_is_complete() -> None:
    spec = DriverSpec(
        job_id="0" * 32, attempt=1, name="inventory", trust_domain="td", leader=LeaderDiscovery(home="/h"),
        jobmaster_token=TOKEN.hex(),
        identity_dir="/i", work_dir="/w", reports_dir="/r", log_dir="/l", executors=5,
    )  # fmt: skip
    conf = driver_conf(spec, {"spark.sql.shuffle.partitions": "3", "spark.app.name": "mine"}, "s3cret", [])
    assert conf["spark.sql.shuffle.partitions"] == "3"
    assert conf["spark.app.name"] == "inventory"
    assert conf["spark.executor.instances"] == "5"
    assert conf["spark.authenticate.secret"] == "s3cret"
    assert conf.items() >= security_conf().items()
    assert "spark.files" not in conf


def test_driver_conf_refuses_a_forbidden_setting_again() -> None:
    spec = DriverSpec(
        job_id="0" * 32, attempt=1, name="n", trust_domain="td", leader=LeaderDiscovery(home="/h"),
        jobmaster_token=TOKEN.hex(),
        identity_dir="/i", work_dir="/w", reports_dir="/r", log_dir="/l",
    )  # fmt: skip
    with pytest.raises(ForbiddenSparkConf):
        driver_conf(spec, {"spark.ssl.rpc.enabled": "false"}, "s3cret", [])


class TestExecutorStartupConf:
    """Executor settings requested by a driver, which runs the job's code."""

    def test_executor_startup_conf_keeps_security_settings_and_drops_ports(self) -> None:
        offered = {**security_conf(), "spark.driver.port": "4242", "spark.rpc.askTimeout": "5s"}
        assert executor_startup_conf(offered) == {**security_conf(), "spark.rpc.askTimeout": "5s"}

    def test_an_empty_executor_startup_conf_gets_the_security_settings(self) -> None:
        assert executor_startup_conf({}) == security_conf()

    @pytest.mark.parametrize("key", list(security_conf()))
    def test_other_value_of_a_security_setting_is_refused(self, key: str) -> None:
        with pytest.raises(ForbiddenSparkConf, match=key):
            executor_startup_conf({key: "something else"})

    @pytest.mark.parametrize(
        "key", ["spark.ssl.rpc.certChain", "spark.executor.extraJavaOptions", "java.x", "spark.sql.extensions"]
    )
    def test_a_setting_that_is_not_for_executor_startup_is_refused(self, key: str) -> None:
        with pytest.raises(ForbiddenSparkConf):
            executor_startup_conf({key: "x"})


def test_shuffle_settings_name_classes_that_exist_in_the_plugin() -> None:
    sources = {path.stem for path in plugin_sources()}
    classes = [value for value in shuffle_conf().values() if value.startswith(SHUFFLE_PACKAGE)]
    assert len(classes) == 3
    assert {name.rpartition(".")[2] for name in classes} <= sources


def test_shuffle_service_settings_are_reserved() -> None:
    for key in ("spark.shuffle.manager", "spark.shuffle.manager.incremental", "spark.shuffle.sort.io.plugin.class"):
        assert key in shuffle_conf()
        assert reserved_by(key) is not None
