"""Which Spark settings a job may make."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.spark.errors import ForbiddenSparkConf
from sluice.runtime.spark.jvm.job_conf import (
    ALLOWED,
    ALLOWED_PROPERTY,
    MAX_ALLOW_CONF,
    MAX_ALLOW_CONF_CHARACTERS,
    MAX_CONF_ENTRIES,
    MAX_CONF_VALUE_CHARACTERS,
    RESERVED,
    RESERVED_PROPERTY,
    check_allow_conf,
    check_job_conf,
    check_unreserved,
    is_allowed,
    rendered,
    reserved_by,
)


def words(text: str) -> list[str]:
    return text.split()


RESERVED_KEYS = words("""
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
spark.shuffle.push.enabled spark.driver.resource.gpu.discoveryScript spark.executor.resource.gpu.discoveryScript
spark.worker.resource.gpu.discoveryScript spark.task.resource.gpu.amount spark.resources.discoveryPlugin
spark.driver.resource.gpu.amount spark.executor.resource.gpu.amount spark.driver.resourcesFile
spark.sql.execution.pyspark.python spark.driver.defaultExtraClassPath spark.driver.log.localDir spark.driver.log.dfsDir
spark.executor.logs.rolling.strategy spark.memory.offHeap.size spark.executor.memoryOverhead
spark.driver.memoryOverheadFactor spark.executor.minMemoryOverhead spark.acls.enable spark.admin.acls
spark.modify.acls.groups spark.testing spark.testing.memory spark.eventLog.enabled
spark.eventLog.dir
""")

NOT_LISTED = words("""
spark.sql.extensions spark.sql.queryExecutionListeners spark.sql.hive.metastore.jars spark.sql.hive.metastore.jars.path
spark.sql.catalog.mine spark.sql.catalog.mine.uri spark.kerberos.keytab
spark.kerberos.principal spark.security.credentials.x.enabled spark.storage.decommission.fallbackStorage.path
spark.storage.replication.topologyFile spark.executor.processTreeMetrics.enabled spark.sql.redaction.options.regex
spark.sql.maven.additionalRemoteRepositories spark.hadoop.hadoop.security.credential.provider.path
spark.hadoop.fs.file.impl spark.sql.artifact.cacheStorageLevel spark.driver.supervise spark.repl.class.uri
spark.whatever.comes.next
""")

ALLOWED_KEYS = words("""
spark.sql.shuffle.partitions spark.sql.adaptive.enabled spark.sql.session.timeZone
spark.sql.execution.arrow.pyspark.enabled spark.default.parallelism spark.task.maxFailures spark.speculation
spark.shuffle.compress spark.shuffle.io.maxRetries spark.shuffle.readHostLocalDisk spark.serializer
spark.memory.fraction spark.network.timeout spark.rpc.message.maxSize spark.rpc.askTimeout
spark.dynamicAllocation.enabled spark.dynamicAllocation.maxExecutors spark.decommission.enabled
spark.scheduler.mode spark.hadoop.fs.s3a.endpoint spark.io.compression.codec spark.executor.heartbeatInterval
spark.python.worker.memory spark.sql.warehouse.dir spark.cleaner.ttl spark.checkpoint.compress
spark.hadoop.fs.s3a.committer.name spark.sql.streaming.stateStore.providerClass spark.kryo.registrator
spark.executor.pyspark.memory spark.sql.parquet.output.committer.class spark.app.name
""")


@pytest.mark.parametrize("key", RESERVED_KEYS)
def test_reserved_setting_is_refused_by_name(key: str) -> None:
    with pytest.raises(ForbiddenSparkConf) as caught:
        check_job_conf({"spark.sql.shuffle.partitions": "4", key: "x"})
    assert key in caught.value.what


@pytest.mark.parametrize("key", RESERVED_KEYS)
@pytest.mark.parametrize("variant", [str.upper, str.lower, str.title])
def test_a_reserved_setting_in_another_spelling_is_refused(key: str, variant: object) -> None:
    """Spark keys are case-sensitive today; nothing must depend on that remaining true."""
    assert callable(variant)
    spelled = variant(key).replace("Spark.", "spark.").replace("SPARK.", "spark.")
    with pytest.raises(ForbiddenSparkConf):
        check_job_conf({spelled: "x"})


@pytest.mark.parametrize("rule", RESERVED, ids=lambda rule: rule.pattern)
def test_every_reservation_rule_is_the_one_that_refuses_some_key(rule: object) -> None:
    """No rule is dead, and each one is tested by the table above."""
    assert any(reserved_by(key) is rule for key in [*RESERVED_KEYS, "spark.ssl", "spark.ui", "spark.remote.x"])


@pytest.mark.parametrize("key", ALLOWED_KEYS)
def test_harmless_setting_is_kept(key: str) -> None:
    assert check_job_conf({key: "1"}) == {key: "1"}


@pytest.mark.parametrize(
    "key",
    ["", "spark", "spark.", "sparkling.key", "log4j.rootLogger", "spark.a b", "spark.a=b", "spark.a\nspark.ssl.x",
     " spark.sql.x", "spark..ssl", "spark.\u017f\u017fl.rpc.enabled"],
)  # fmt: skip
def test_a_malformed_spark_key_is_refused(key: str) -> None:
    with pytest.raises(ForbiddenSparkConf):
        check_job_conf({key: "x"})


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "\x1b[31m"])
def test_control_characters_in_a_value_are_refused(value: str) -> None:
    """A value ends up in an argument file, one argument a line."""
    with pytest.raises(ForbiddenSparkConf, match="control"):
        check_job_conf({"spark.sql.adaptive.x": value})


def test_too_long_values_and_too_many_settings_are_refused() -> None:
    check_job_conf({"spark.sql.adaptive.x": "v" * MAX_CONF_VALUE_CHARACTERS})
    with pytest.raises(ForbiddenSparkConf, match="characters"):
        check_job_conf({"spark.sql.adaptive.x": "v" * (MAX_CONF_VALUE_CHARACTERS + 1)})
    check_job_conf({f"spark.sql.adaptive.x{i}": "" for i in range(MAX_CONF_ENTRIES)})
    with pytest.raises(ForbiddenSparkConf, match="at most"):
        check_job_conf({f"spark.sql.adaptive.x{i}": "" for i in range(MAX_CONF_ENTRIES + 1)})


def test_error_does_not_repeat_the_value() -> None:
    """It may be somebody's password."""
    with pytest.raises(ForbiddenSparkConf) as caught:
        check_job_conf({"spark.ssl.rpc.keyPassword": "hunter2"})
    assert "hunter2" not in str(caught.value)


@given(st.dictionaries(st.text(max_size=40), st.text(max_size=40), max_size=5))
def test_a_conf_that_is_accepted_contains_only_allowed_keys(conf: dict[str, str]) -> None:
    try:
        passed = check_job_conf(conf)
    except ForbiddenSparkConf:
        return
    assert passed == conf
    assert all(is_allowed(key) for key in passed)


@pytest.mark.parametrize("key", NOT_LISTED)
def test_an_unlisted_setting_is_refused_until_the_operator_allows_it(key: str) -> None:
    with pytest.raises(ForbiddenSparkConf, match="allowed settings") as caught:
        check_job_conf({key: "x"})
    assert "allow_conf" in caught.value.remedy
    prefix = key.rpartition(".")[0] + ".*"
    for pattern in (key, prefix):
        assert check_job_conf({key: "x"}, check_allow_conf([pattern])) == {key: "x"}
    assert check_unreserved({key: "x"}) == {key: "x"}


@pytest.mark.parametrize("key", RESERVED_KEYS)
def test_an_operator_cannot_allow_a_reserved_setting(key: str) -> None:
    with pytest.raises(ForbiddenSparkConf, match="cannot let jobs set"):
        check_allow_conf([key])
    with pytest.raises(ForbiddenSparkConf):
        check_job_conf({key: "x"}, ["spark.*"])
    with pytest.raises(ForbiddenSparkConf):
        check_unreserved({key: "x"})


@pytest.mark.parametrize(
    "pattern", ["*", "spark", "spark*", "*.sql", "spark.sql.c*", "spark.a b", "spark.a,spark.b", ""]
)
def test_a_malformed_allow_conf_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ForbiddenSparkConf, match="not a Spark setting"):
        check_allow_conf([pattern])


def test_allow_conf_is_bounded() -> None:
    with pytest.raises(ForbiddenSparkConf, match="entries"):
        check_allow_conf([f"spark.x{i}" for i in range(MAX_ALLOW_CONF + 1)])
    with pytest.raises(ForbiddenSparkConf, match="not a Spark setting"):
        check_allow_conf(["spark." + "x" * MAX_ALLOW_CONF_CHARACTERS])


def test_a_spelling_mistake_is_answered_with_the_nearest_setting() -> None:
    with pytest.raises(ForbiddenSparkConf) as caught:
        check_job_conf({"spark.default.paralelism": "4"})
    assert "spark.default.parallelism" in caught.value.remedy


def test_an_allowed_setting_in_another_case_is_refused() -> None:
    """Spark would ignore the setting."""
    with pytest.raises(ForbiddenSparkConf):
        check_job_conf({"spark.Default.Parallelism": "4"})


def test_nothing_is_both_allowed_and_reserved_by_name() -> None:
    names = [name for group in ALLOWED for name in group.names]
    assert not [name for name in names if not name.endswith("*") and reserved_by(name)]
    assert len(names) == len(set(names))


def test_reserved_and_allowed_lists_are_rendered_as_jvm_properties() -> None:
    properties = rendered(["spark.sql.catalog.*"])
    assert properties.keys() == {RESERVED_PROPERTY, ALLOWED_PROPERTY}
    reserved = properties[RESERVED_PROPERTY].split(",")
    assert reserved == [rule.pattern.lower() for rule in RESERVED]
    assert properties[ALLOWED_PROPERTY].split(",")[-1] == "spark.sql.catalog.*"
    assert not any(character.isspace() for value in properties.values() for character in value)
