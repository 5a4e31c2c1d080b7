"""What a job may say about Spark, and what it may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.runtime.spark.driver.process import driver_conf
from sluice.runtime.spark.driver.spec import DriverSpec
from sluice.runtime.spark.errors import ForbiddenSparkConf
from sluice.runtime.spark.jvm.conf import (
    MAX_CONF_ENTRIES,
    MAX_CONF_VALUE_CHARACTERS,
    RULES,
    SHUFFLE_PACKAGE,
    DriverShape,
    check_job_conf,
    default_conf,
    executor_startup_conf,
    forbidden_by,
    forbidden_patterns,
    launcher_conf,
    security_conf,
    shuffle_conf,
)
from sluice.runtime.spark.plugin_build import plugin_sources

TOKEN = b"token"
SHAPE = DriverShape(executors=3, executor_cores=1, executor_memory_mb=768, driver_memory_mb=512)


def words(text: str) -> list[str]:
    return text.split()


FORBIDDEN = words("""
spark.sql.streaming.checkpointLocation
spark.ssl.enabled spark.ssl.rpc.enabled spark.ssl.rpc.protocol spark.ssl.rpc.certChain spark.ssl.rpc.privateKey
spark.ssl.rpc.keyStore spark.ssl.ui.port spark.authenticate spark.authenticate.secret spark.authenticate.secret.file
spark.authenticate.enableSaslEncryption spark.network.crypto.enabled spark.network.crypto.cipher
spark.network.sasl.serverAlwaysEncrypt spark.redaction.regex spark.sluice.anything
spark.driver.extraJavaOptions spark.executor.extraJavaOptions spark.driver.defaultJavaOptions
spark.executor.defaultJavaOptions spark.yarn.am.extraJavaOptions spark.driver.extraClassPath
spark.executor.extraClassPath spark.driver.extraLibraryPath spark.executor.extraLibraryPath
spark.driver.userClassPathFirst spark.executor.userClassPathFirst spark.executorEnv.JAVA_TOOL_OPTIONS
spark.executorEnv.LD_PRELOAD spark.plugins spark.plugins.defaultList spark.extraListeners spark.pyspark.python
spark.pyspark.driver.python spark.python.daemon.module spark.python.worker.module spark.python.use.daemon spark.home
spark.ui.enabled spark.ui.port spark.connect.grpc.binding.port spark.remote spark.local.connect spark.api.mode
spark.metrics.conf spark.metrics.conf.driver.sink.jmx.class spark.history.ui.port spark.shuffle.service.enabled
spark.port.maxRetries spark.driver.port spark.blockManager.port spark.driver.blockManager.port
spark.driver.bindAddress spark.driver.host spark.python.unix.domain.socket.enabled
spark.python.unix.domain.socket.dir spark.master spark.master.rest.enabled spark.worker.cleanup.enabled
spark.deploy.recoveryMode spark.yarn.queue spark.kubernetes.namespace spark.app.id spark.local.dir
spark.executor.instances spark.executor.cores spark.executor.memory spark.driver.memory spark.driver.cores
spark.submit.pyFiles spark.submit.deployMode spark.jars spark.jars.packages spark.jars.repositories spark.files
spark.archives spark.r.command spark.sql.hive.thriftServer.singleSession spark.shuffle.manager
spark.shuffle.manager.incremental spark.shuffle.sort.io.plugin.class spark.shuffle.useOldFetchProtocol
spark.shuffle.push.enabled
""")

ALLOWED = words("""
spark.sql.shuffle.partitions spark.sql.adaptive.enabled spark.sql.session.timeZone
spark.sql.execution.arrow.pyspark.enabled spark.default.parallelism spark.task.maxFailures spark.speculation
spark.shuffle.compress spark.shuffle.io.maxRetries spark.shuffle.readHostLocalDisk spark.serializer
spark.memory.fraction spark.network.timeout spark.rpc.message.maxSize spark.rpc.askTimeout
spark.dynamicAllocation.enabled spark.dynamicAllocation.maxExecutors spark.decommission.enabled
spark.scheduler.mode spark.hadoop.fs.s3a.endpoint spark.io.compression.codec spark.executor.heartbeatInterval
spark.python.worker.memory spark.sql.warehouse.dir spark.cleaner.ttl spark.checkpoint.compress
""")


@pytest.mark.parametrize("key", FORBIDDEN)
def test_forbidden_setting_is_refused_by_name(key: str) -> None:
    with pytest.raises(ForbiddenSparkConf) as caught:
        check_job_conf({"spark.sql.shuffle.partitions": "4", key: "x"})
    assert key in caught.value.what


@pytest.mark.parametrize("key", FORBIDDEN)
@pytest.mark.parametrize("variant", [str.upper, str.lower, str.title])
def test_other_spelling_is_refused_too(key: str, variant: object) -> None:
    """Spark keys are case-sensitive today; nothing must depend on that staying so."""
    assert callable(variant)
    spelled = variant(key).replace("Spark.", "spark.").replace("SPARK.", "spark.")
    with pytest.raises(ForbiddenSparkConf):
        check_job_conf({spelled: "x"})


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.pattern)
def test_every_rule_refuses_something_of_its_own(rule: object) -> None:
    """No rule is dead, and each is tried by the table above."""
    assert any(forbidden_by(key) is rule for key in [*FORBIDDEN, "spark.ssl", "spark.ui", "spark.remote.x"])


@pytest.mark.parametrize("key", ALLOWED)
def test_harmless_setting_is_kept(key: str) -> None:
    assert check_job_conf({key: "1"}) == {key: "1"}


@pytest.mark.parametrize(
    "key",
    ["", "spark", "spark.", "sparkling.key", "log4j.rootLogger", "spark.a b", "spark.a=b", "spark.a\nspark.ssl.x",
     " spark.sql.x", "spark..ssl", "spark.\u017f\u017fl.rpc.enabled"],
)  # fmt: skip
def test_what_is_no_spark_key_is_refused(key: str) -> None:
    with pytest.raises(ForbiddenSparkConf):
        check_job_conf({key: "x"})


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "\x1b[31m"])
def test_control_characters_in_a_value_are_refused(value: str) -> None:
    """A value ends up in an argument file, one argument a line."""
    with pytest.raises(ForbiddenSparkConf, match="control"):
        check_job_conf({"spark.sql.x": value})


def test_limits() -> None:
    check_job_conf({"spark.sql.x": "v" * MAX_CONF_VALUE_CHARACTERS})
    with pytest.raises(ForbiddenSparkConf, match="characters"):
        check_job_conf({"spark.sql.x": "v" * (MAX_CONF_VALUE_CHARACTERS + 1)})
    check_job_conf({f"spark.sql.x{i}": "" for i in range(MAX_CONF_ENTRIES)})
    with pytest.raises(ForbiddenSparkConf, match="at most"):
        check_job_conf({f"spark.sql.x{i}": "" for i in range(MAX_CONF_ENTRIES + 1)})


def test_error_does_not_repeat_the_value() -> None:
    """It may be somebody's password."""
    with pytest.raises(ForbiddenSparkConf) as caught:
        check_job_conf({"spark.ssl.rpc.keyPassword": "hunter2"})
    assert "hunter2" not in str(caught.value)


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=40), max_size=5))
def test_what_passes_holds_nothing_forbidden(conf: dict[str, str]) -> None:
    try:
        passed = check_job_conf(conf)
    except ForbiddenSparkConf:
        return
    assert passed == conf
    assert all(forbidden_by(key) is None for key in passed)


def test_defaults_are_settings_a_job_may_make() -> None:
    assert check_job_conf(default_conf()) == default_conf()


def test_patterns_for_the_jvm_are_lower_case_and_survive_a_list() -> None:
    for pattern in forbidden_patterns():
        assert pattern == pattern.lower()
        assert "," not in pattern


def test_launcher_wins_over_nothing_but_its_own_keys() -> None:
    """Every setting of the launcher that a job could turn into harm is forbidden to jobs."""
    for key in launcher_conf(job_id="0" * 32, name="n", host="127.0.0.1", shape=SHAPE):
        assert key == "spark.app.name" or forbidden_by(key) is not None


def test_driver_conf_is_complete() -> None:
    spec = DriverSpec(
        job_id="0" * 32, attempt=1, name="inventory", trust_domain="td", jobmanager_name="jm", jobmanager_host="h",
        jobmanager_port=1, jobmaster_token=TOKEN.hex(), identity_dir="/i", work_dir="/w", executors=5,
    )  # fmt: skip
    conf = driver_conf(spec, {"spark.sql.shuffle.partitions": "3", "spark.app.name": "mine"}, "s3cret", [])
    assert conf["spark.sql.shuffle.partitions"] == "3"
    assert conf["spark.app.name"] == "inventory"
    assert conf["spark.executor.instances"] == "5"
    assert conf["spark.authenticate.secret"] == "s3cret"
    assert conf.items() >= security_conf().items()
    assert "spark.files" not in conf


def test_driver_conf_refuses_what_the_jobmanager_should_have_refused() -> None:
    spec = DriverSpec(
        job_id="0" * 32, attempt=1, name="n", trust_domain="td", jobmanager_name="jm", jobmanager_host="h",
        jobmanager_port=1, jobmaster_token=TOKEN.hex(), identity_dir="/i", work_dir="/w",
    )  # fmt: skip
    with pytest.raises(ForbiddenSparkConf):
        driver_conf(spec, {"spark.ssl.rpc.enabled": "false"}, "s3cret", [])


class TestExecutorStartupConf:
    """What a driver, which runs the job's code, asks for its executors."""

    def test_security_is_ours_and_ports_are_dropped(self) -> None:
        offered = {**security_conf(), "spark.driver.port": "4242", "spark.rpc.askTimeout": "5s"}
        assert executor_startup_conf(offered) == {**security_conf(), "spark.rpc.askTimeout": "5s"}

    def test_nothing_offered_is_completed(self) -> None:
        assert executor_startup_conf({}) == security_conf()

    @pytest.mark.parametrize("key", list(security_conf()))
    def test_other_value_of_a_security_setting_is_refused(self, key: str) -> None:
        with pytest.raises(ForbiddenSparkConf, match=key):
            executor_startup_conf({key: "something else"})

    @pytest.mark.parametrize("key", ["spark.ssl.rpc.certChain", "spark.executor.extraJavaOptions", "java.x"])
    def test_anything_else_forbidden_is_refused(self, key: str) -> None:
        with pytest.raises(ForbiddenSparkConf):
            executor_startup_conf({key: "x"})


def test_settings_of_the_shuffle_name_classes_of_the_plugin() -> None:
    sources = {path.stem for path in plugin_sources()}
    classes = [value for value in shuffle_conf().values() if value.startswith(SHUFFLE_PACKAGE)]
    assert len(classes) == 2
    assert {name.rpartition(".")[2] for name in classes} <= sources


def test_job_cannot_take_its_shuffles_out_of_the_service() -> None:
    for key in ("spark.shuffle.manager", "spark.shuffle.sort.io.plugin.class"):
        assert key in shuffle_conf()
        assert forbidden_by(key) is not None
