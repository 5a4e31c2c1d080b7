"""Decides which Spark settings a job may set. No I/O.

A job's configuration is untrusted. :data:`ALLOWED` lists the settings that a job may set, by name or prefix; all others
are refused. :data:`RESERVED` lists the settings that only the launcher sets: they decide how Spark's channels are
secured, what is on a JVM's command line, what listens, and how large a job is. An operator cannot allow these to jobs,
but can allow any other setting with ``[jobs] allow_conf``.

Both lists are also passed to the driver's JVM (:func:`rendered`), where the cluster manager checks the settings that
the job's *code* puts into its SparkContext.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sluice.runtime.spark.errors import ForbiddenSparkConf

MAX_CONF_ENTRIES = 500
"""Maximum number of Spark settings of one job."""

MAX_CONF_VALUE_CHARACTERS = 32_768
"""Maximum length of the value of a Spark setting."""

MAX_ALLOW_CONF = 200
"""Maximum number of entries in ``[jobs] allow_conf``."""

MAX_ALLOW_CONF_CHARACTERS = 200
"""Maximum length of an entry. All entries are in the spec of each driver, and on its JVM's command line."""

RESERVED_PROPERTY = "sluice.conf.reserved"
ALLOWED_PROPERTY = "sluice.conf.allowed"
"""System properties of the driver's JVM, see :func:`rendered`."""

CHECKPOINT_LOCATION = "spark.sql.streaming.checkpointLocation"

_KEY = re.compile(r"spark(\.[A-Za-z0-9_-]+)+")
_ALLOWABLE = re.compile(r"spark(\.[A-Za-z0-9_-]+)+(\.\*)?")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Rule:
    """Reserves the settings that match ``pattern`` for the launcher; ``*`` matches anything, including dots."""

    pattern: str
    why: str
    remedy: str = "leave it out"


_TLS = "the channels of a job are mutual TLS and a job cannot change that"
_COMMAND = "the launcher composes every JVM command line and environment itself"
_LISTENER = "it would open or move a listener"
_PLACE = "the launcher decides where a job runs"
_SIZE = "slots decide the size of an executor"
_SHUFFLE = "the cluster decides where shuffles go"
_FETCH = "files of a job travel with its submission, not over connections of Spark's own"

RESERVED: tuple[Rule, ...] = (
    # 1. Settings that decide how Spark's own channels are secured.
    Rule("spark.ssl", _TLS),
    Rule("spark.ssl.*", _TLS),
    Rule("spark.authenticate", _TLS),
    Rule("spark.authenticate.*", _TLS),
    Rule("spark.network.crypto.*", _TLS),
    Rule("spark.network.sasl.*", _TLS),
    Rule("spark.redaction.*", "it decides which secrets are kept out of logs"),
    Rule("spark.sluice.*", "these names are the launcher's own"),
    # 2. Settings that affect the command line, class path or environment of a JVM or worker.
    Rule("spark.*.extrajavaoptions", _COMMAND),
    Rule("spark.*.defaultjavaoptions", _COMMAND),
    Rule("spark.*.extraclasspath", _COMMAND),
    Rule("spark.*.extralibrarypath", _COMMAND),
    Rule("spark.*.userclasspathfirst", _COMMAND),
    Rule("spark.executorenv.*", _COMMAND),
    Rule("spark.plugins", _COMMAND),
    Rule("spark.plugins.*", _COMMAND),
    Rule("spark.extralisteners", _COMMAND),
    Rule("spark.pyspark.*", _COMMAND, "use --python, with a Python of --archives"),
    Rule("spark.python.daemon.module", _COMMAND),
    Rule("spark.python.worker.module", _COMMAND),
    Rule("spark.python.use.daemon", _COMMAND),
    Rule("spark.home", _COMMAND),
    Rule("spark.r.*", "only Python pipelines are run"),
    # 3. Listeners other than those with TLS.
    Rule("spark.ui", _LISTENER),
    Rule("spark.ui.*", _LISTENER),
    Rule("spark.connect.*", _LISTENER),
    Rule("spark.remote", _LISTENER),
    Rule("spark.remote.*", _LISTENER),
    Rule("spark.local.connect", _LISTENER),
    Rule("spark.api.mode", _LISTENER),
    Rule("spark.metrics.*", _LISTENER),
    Rule("spark.history.*", _LISTENER),
    Rule("spark.sql.hive.thriftserver.*", _LISTENER),
    Rule("spark.shuffle.service.*", _LISTENER),
    Rule("spark.port.*", _LISTENER),
    Rule("spark.*.port", _LISTENER),
    Rule("spark.*.bindaddress", _LISTENER),
    Rule("spark.driver.host", _LISTENER),
    Rule("spark.python.unix.domain.socket.*", "Python workers are reached over private unix sockets only"),
    # 4. Where a job runs, and its size.
    Rule("spark.master", _PLACE),
    Rule("spark.master.*", _PLACE),
    Rule("spark.worker.*", _PLACE),
    Rule("spark.deploy.*", _PLACE),
    Rule("spark.yarn.*", _PLACE),
    Rule("spark.kubernetes.*", _PLACE),
    Rule("spark.app.id", _PLACE),
    Rule("spark.local.dir", _PLACE),
    Rule("spark.executor.instances", _SIZE, "use --executors"),
    Rule("spark.executor.cores", _SIZE, "use --executor-cores"),
    Rule("spark.executor.memory", _SIZE, "use --executor-memory"),
    Rule("spark.driver.memory", _SIZE, "set driver_memory_mb in [spark]"),
    Rule("spark.driver.cores", _SIZE),
    Rule(CHECKPOINT_LOCATION.lower(), "checkpoints are where the next attempt of the job finds them"),
    # 5. A job uses the shuffle service for all shuffles or for none; a map's number must be that of its attempt.
    Rule("spark.shuffle.manager", _SHUFFLE),
    Rule("spark.shuffle.manager.*", _SHUFFLE),
    Rule("spark.shuffle.sort.io.plugin.class", _SHUFFLE),
    Rule("spark.shuffle.useoldfetchprotocol", _SHUFFLE),
    Rule("spark.shuffle.push.*", _SHUFFLE),
    # 6. Artifacts fetched outside the blob server.
    Rule("spark.submit.*", _FETCH, "use --file"),
    Rule("spark.jars", _FETCH, "use --file and SparkContext.addJar"),
    Rule("spark.jars.*", _FETCH, "use --file and SparkContext.addJar"),
    Rule("spark.files", _FETCH, "use --file"),
    Rule("spark.archives", _FETCH, "use --archives"),
    # 7. Programs and paths outside the job's own directory, and memory outside its slot.
    Rule("spark.*.discoveryscript", "it names a program that Spark runs", "ask the operator for slots with resources"),
    Rule("spark.*.discoveryplugin", "it names a class that Spark runs before the job"),
    Rule("spark.driver.resource.*", _SIZE),
    Rule("spark.executor.resource.*", _SIZE),
    Rule("spark.task.resource.*", _SIZE),
    Rule("spark.*.resourcesfile", _PLACE),
    Rule("spark.sql.execution.pyspark.python", _COMMAND, "use --python, with a Python of --archives"),
    Rule("spark.*.defaultextraclasspath", _COMMAND),
    Rule("spark.*.log.*dir", "the launcher keeps a job's logs"),
    Rule("spark.executor.logs.*", "the launcher keeps a job's logs"),
    Rule("spark.eventlog.*", "the launcher keeps a job's event log"),
    Rule("spark.memory.offheap.*", _SIZE),
    Rule("spark.*.memoryoverhead*", _SIZE),
    Rule("spark.*.minmemoryoverhead", _SIZE),
    Rule("spark.acls.*", "the gateway decides who may see and change a job"),
    Rule("spark.*.acls", "the gateway decides who may see and change a job"),
    Rule("spark.*.acls.groups", "the gateway decides who may see and change a job"),
    Rule("spark.testing", "it is for Spark's own tests"),
    Rule("spark.testing.*", "it is for Spark's own tests"),
)
"""Settings that no job may set, whatever the operator allows. Matched case-insensitively."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Settings that a job may set: full names, or prefixes that end in ``.*``. ``why`` says what they are for."""

    why: str
    names: tuple[str, ...]


def _under(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names.split())


ALLOWED: tuple[Allowed, ...] = (
    Allowed("what the job is called", ("spark.app.name",)),
    Allowed(
        "how the job's own tasks are scheduled and retried",
        _under(
            "spark",
            """
            default.parallelism task.cpus task.maxFailures task.maxDirectResultSize task.reaper.* speculation
            speculation.* locality.wait locality.wait.* stage.* scheduler.* excludeOnFailure.* barrier.sync.timeout
            taskMetrics.trackUpdatedBlockStatuses jobGroup.id job.description
            """,
        ),
    ),
    Allowed(
        "how many of its slots the job uses, within the limits of its owner",
        _under(
            "spark",
            """
            dynamicAllocation.enabled dynamicAllocation.minExecutors dynamicAllocation.maxExecutors
            dynamicAllocation.initialExecutors dynamicAllocation.executorAllocationRatio
            dynamicAllocation.executorIdleTimeout dynamicAllocation.cachedExecutorIdleTimeout
            dynamicAllocation.schedulerBacklogTimeout dynamicAllocation.sustainedSchedulerBacklogTimeout
            dynamicAllocation.shuffleTracking.* decommission.enabled storage.decommission.enabled
            storage.decommission.shuffleBlocks.* storage.decommission.rddBlocks.*
            storage.decommission.maxReplicationFailuresPerBlock storage.decommission.replicationReattemptInterval
            executor.decommission.killInterval executor.decommission.forceKillTimeout
            """,
        ),
    ),
    Allowed(
        "how the job uses the memory of its slots",
        _under(
            "spark",
            """
            memory.fraction memory.storageFraction memory.unmanagedMemoryPollingInterval python.worker.memory
            executor.pyspark.memory driver.maxResultSize storage.memoryMapThreshold storage.unrollMemoryThreshold
            storage.replication.proactive storage.cachedPeersTtl storage.rddBlockChecksum.* buffer.* cleaner.*
            broadcast.* unsafe.sorter.* rdd.* files.maxPartitionBytes files.openCostInBytes files.ignoreCorruptFiles
            files.ignoreMissingFiles hadoopRDD.ignoreEmptySplits executor.isolatedSessionCache.size
            """,
        ),
    ),
    Allowed(
        "how the job's own data is written and compressed",
        _under(
            "spark",
            """
            serializer serializer.* kryo.* kryoserializer.* io.compression.* io.encryption.* io.warning.*
            checkpoint.compress checkpoint.dir checkpoint.local.* file.transferTo
            """,
        ),
    ),
    Allowed(
        "how the job moves its shuffle data, over the channels that the launcher secures",
        _under(
            "spark.shuffle",
            """
            accurateBlockSkewedFactor accurateBlockThreshold checksum.* compress detectCorrupt detectCorrupt.* file.*
            io.maxRetries io.retryWait io.connectionTimeout io.preferDirectBufs io.numConnectionsPerPeer
            localDisk.file.output.buffer mapOutput.* mapStatus.compression.codec maxAccurateSkewedBlockNumber
            maxAttemptsOnNettyOOM minNumPartitionsToHighlyCompress readHostLocalDisk reduceLocality.enabled
            sort.bypassMergeThreshold sort.initialBufferSize sort.useRadixSort spill.*
            streaming.networkBufferMaxWaitTimeMs streaming.readerMaxMemory streaming.writerMaxMemory sync unsafe.*
            """,
        )
        + _under("spark.reducer", "maxBlocksInFlightPerAddress maxReqsInFlight maxSizeInFlight"),
    ),
    Allowed(
        "how long the job's processes wait for each other",
        _under(
            "spark",
            """
            network.timeout network.timeoutInterval network.maxRemoteBlockSizeFetchToMem rpc.askTimeout
            rpc.lookupTimeout rpc.message.maxSize rpc.numRetries rpc.retry.wait executor.heartbeatInterval
            executor.heartbeat.* executor.maxNumFailures executor.failuresValidityInterval
            storage.blockManagerHeartbeatTimeoutMs storage.maxReplicationFailures
            """,
        ),
    ),
    Allowed(
        "how the job's own Python workers run",
        _under(
            "spark.python",
            """
            worker.reuse worker.faulthandler.enabled worker.idleTimeoutSeconds worker.killOnIdleTimeout
            worker.tracebackDumpIntervalSeconds task.killTimeout authenticate.socketTimeout udf.pipelined.*
            daemon.killWorkerOnFlushFailure factory.idleWorkerMaxPoolSize sql.dataFrameDebugging.enabled
            """,
        ),
    ),
    Allowed(
        "how much the job logs",
        _under("spark", "log.level log.callerContext log.structuredLogging.enabled logConf logLineage"),
    ),
    Allowed(
        "how the job's queries are planned and run",
        _under(
            "spark.sql",
            """
            adaptive.* addPartitionInBatch.* allowNamedFunctionArguments alwaysInlineCommonExpr analyzer.* ansi.*
            artifact.isolation.* assumeAnsiFalseIfNotPersisted.* autoBroadcastJoinThreshold
            avro.* binaryOutputStyle broadcastExchange.* binByRelationOperator.* broadcastTimeout bucketing.* cache.*
            cartesianProductExec.* caseSensitive cbo.* charAsVarchar chunkBase64String.* classic.* codegen.*
            collation.* columnNameOfCorruptRecord columnVector.* constraintPropagation.* crossJoin.* csv.*
            cteRecursionLevelLimit cteRecursionRowLimit cteRecursionAnchorRowsLimitToConvertToLocalRelation
            cteRelationDefMaxRows.* dataFrameQueryContext.* dataSource.* dataframeCache.* datetime.*
            debug.maxToStringFields decimalOperations.* defaultCacheStorageLevel defaultCatalog defaultColumn.*
            defaultSizeInBytes dropDuplicates.* error.* event.* exchange.* execution.* experimental.*
            expressionTreeChangeLog.* fileSource.* files.* filesourceTableRelationCacheSize function.*
            functionResolution.* generatedColumn.* geospatial.* groupByAliases groupByOrdinal icu.*
            inMemoryColumnarStorage.* inMemoryTableScanStatistics.* insertIntoReplaceOn.* insertIntoReplaceOnByName.*
            insertIntoReplaceUsing.* insertIntoReplaceUsingByName.* insertIntoReplaceWhereColumnList.*
            insertNestedTypeCoercion.* join.* json.* jsonGenerator.* kafka.* lazySetOperatorOutput.*
            lateralColumnAlias.* leafNodeDefaultParallelism legacy.* limit.* listagg.* mapKeyDedupPolicy
            maxBroadcastTableSize maxConcurrentOutputFileWriters maxMetadataStringLength maxPlanStringLength
            maxSinglePartitionBytes mergeNestedTypeCoercion.* metadataCacheTTLSeconds objectHashAggregate.*
            operatorPipeSyntaxEnabled optimizeNullAwareAntiJoin optimizeNullAwareAntiJoin.* optimizer.* orc.*
            orderByOrdinal orderingAwareLimitOffset parquet.* parser.* path.* pipelines.* pivotMaxValues
            planChangeLog.* planChangeValidation planChangeValidation.* planner.* preserveCharVarcharTypeInfo
            protobuf.* pyspark.* python.* readSideCharPadding repl.* requireAllClusterKeysForCoPartition
            requireAllClusterKeysForDistribution retainGroupColumns runSQLOnFiles scripting.*
            selfJoinAutoResolveAmbiguity session.* sessionWindow.* shuffle.* shuffleDependency.* shuffleExchange.*
            shuffledHashJoinFactor sort.* sortMergeJoinExec.* sources.* stackTracesInDataFrameContext
            stableDerivedColumnAlias.* statistics.* storeAssignmentPolicy streaming.* subexpressionElimination.*
            subquery.* timeTravel.* timeTravelTimestampKey timeTravelVersionKey timeType.* timestampNanosTypes.*
            timestampType transposeMaxValues truncateTable.* tvf.* ui.* unionOutputPartitioning
            useCommonExprIdForAlias variable.* variant.* view.* warehouse.dir window.* windowExec.* xml.*
            """,
        ),
    ),
    Allowed(
        "where the job's own data is, with credentials of its own",
        _under(
            "spark.hadoop",
            """
            fs.defaultFS fs.s3a.* fs.gs.* fs.abfs.* fs.abfss.* fs.azure.* fs.wasbs.* google.cloud.auth.* io.*
            mapreduce.fileoutputcommitter.* mapreduce.input.* mapreduce.output.* parquet.* orc.* avro.*
            """,
        ),
    ),
)
"""Settings that a job may set. Matched case-sensitively, as in Spark."""


def reserved_by(key: str) -> Rule | None:
    """The rule that reserves ``key`` for the launcher; None: it is not reserved."""
    lowered = key.lower()
    return next((rule for rule in RESERVED if fnmatch.fnmatchcase(lowered, rule.pattern)), None)


def is_allowed(key: str, extra: Iterable[str] = ()) -> bool:
    """Whether :data:`ALLOWED` or ``extra`` (names, or prefixes that end in ``.*``) allow a job to set ``key``."""
    if reserved_by(key) is not None:
        return False
    patterns = (*(name for group in ALLOWED for name in group.names), *extra)
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def check_allow_conf(patterns: Iterable[str]) -> tuple[str, ...]:
    """Check and return the value of ``[jobs] allow_conf``.

    Raises:
        ForbiddenSparkConf: an entry is not a setting, or is reserved; or there are too many entries.
    """
    checked = tuple(patterns)
    if len(checked) > MAX_ALLOW_CONF:
        raise ForbiddenSparkConf(f"allow_conf has {len(checked)} entries", f"at most {MAX_ALLOW_CONF} are allowed")
    for pattern in checked:
        if len(pattern) > MAX_ALLOW_CONF_CHARACTERS or not _ALLOWABLE.fullmatch(pattern):
            raise ForbiddenSparkConf(
                f"{pattern[:100]!r} in allow_conf is not a Spark setting",
                "name one, or a prefix such as spark.sql.catalog.*",
            )
        rule = reserved_by(pattern)
        if rule is not None:
            raise ForbiddenSparkConf(f"allow_conf cannot let jobs set {pattern}: {rule.why}", "leave it out")
    return checked


def check_job_conf(conf: Mapping[str, str], extra: Iterable[str] = ()) -> dict[str, str]:
    """Check a job's Spark settings and return a copy.

    Args:
        conf: the job's settings.
        extra: additional settings that the operator allows, see :func:`check_allow_conf`.

    Raises:
        ForbiddenSparkConf: a job may not set one of them (the error suggests the closest allowed setting); there are
            too many; a name is invalid; or a value is too long or has control characters. The error omits the value.
    """
    vetted = check_unreserved(conf)
    patterns = tuple(extra)
    for key in vetted:
        if not is_allowed(key, patterns):
            raise ForbiddenSparkConf(f"a job may not set {key}: it is not among the allowed settings", _remedy(key))
    return vetted


def check_unreserved(conf: Mapping[str, str]) -> dict[str, str]:
    """Check settings for syntax and reserved names only, and return a copy.

    Raises:
        ForbiddenSparkConf: a setting is reserved or invalid, or there are too many.
    """
    if len(conf) > MAX_CONF_ENTRIES:
        raise ForbiddenSparkConf(f"{len(conf)} Spark settings in one job", f"at most {MAX_CONF_ENTRIES} are allowed")
    for key, value in conf.items():
        if not _KEY.fullmatch(key):
            raise ForbiddenSparkConf(f"{key[:100]!r} is not a Spark setting", "settings are named spark.something")
        rule = reserved_by(key)
        if rule is not None:
            raise ForbiddenSparkConf(f"a job may not set {key}: {rule.why}", rule.remedy)
        if len(value) > MAX_CONF_VALUE_CHARACTERS:
            raise ForbiddenSparkConf(f"the value of {key} has {len(value)} characters", "shorten it")
        if _CONTROL.search(value):
            raise ForbiddenSparkConf(f"the value of {key} has control characters", "remove line breaks and the like")
    return dict(conf)


def rendered(extra: Iterable[str] = ()) -> dict[str, str]:
    """Both lists as system properties of the driver's JVM: patterns, separated by commas."""
    allowed = [pattern for group in ALLOWED for pattern in group.names]
    return {
        RESERVED_PROPERTY: ",".join(rule.pattern for rule in RESERVED),
        ALLOWED_PROPERTY: ",".join([*allowed, *extra]),
    }


def _remedy(key: str) -> str:
    operator = "ask the operator to add it to allow_conf in [jobs]"
    names = {name.lower(): name for group in ALLOWED for name in group.names}
    near = difflib.get_close_matches(key.lower()[:100], names, n=1, cutoff=0.75)
    return f"did you mean {names[near[0]]}? Otherwise {operator}" if near else operator
