package org.apache.spark.scheduler.cluster.sluice

import java.util.concurrent.{ConcurrentHashMap, TimeUnit, TimeoutException}
import java.util.concurrent.atomic.{AtomicBoolean, AtomicInteger, AtomicLong}

import scala.concurrent.Future
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.internal.config
import org.apache.spark.resource.ResourceProfile
import org.apache.spark.rpc.{RpcAddress, RpcEndpointAddress}
import org.apache.spark.scheduler.{ExecutorDecommissionInfo, ExecutorExited, ExecutorLossReason, ExecutorProcessLost, TaskSchedulerImpl}
import org.apache.spark.scheduler.cluster.{CoarseGrainedSchedulerBackend, SchedulerBackendUtils}
import org.apache.spark.shuffle.sluice.{PipelinedShuffles, ShuffleService}
import org.apache.spark.sql.sluice.StreamingQueries
import org.apache.spark.util.{ThreadUtils, Utils}

/** Tells the JobMaster how many executors Spark wants, and tells Spark why an executor was lost.
  *
  * Requests are level-triggered: each message states the total number of executors and replaces the message before it.
  * The JobMaster keeps that number running and replaces lost executors, because Spark itself requests no replacements
  * under static allocation.
  */
private[sluice] final class SluiceSchedulerBackend(scheduler: TaskSchedulerImpl, sc: SparkContext)
    extends CoarseGrainedSchedulerBackend(scheduler, sc.env.rpcEnv) {
  import SluiceSchedulerBackend._

  private val appId = nextApplicationId()
  private val initialExecutors = SchedulerBackendUtils.getInitialTargetExecutorNumber(conf)
  private val bridge = new Bridge(received, lost)
  private val progress = new ProgressListener(bridge)
  private val stages = new StageListener(bridge)
  private val stopping = new AtomicBoolean()
  @volatile private var begun = false

  /** False if the job itself sets how many executors to wait for: then its tasks wait for all of them. */
  private val beginsWithFirst = conf.getBoolean(BeginWithFirst, defaultValue = false)
  private val firstWaits = new AtomicBoolean()
  @volatile private var firstGraceOver = false
  private val graceTimer = ThreadUtils.newDaemonSingleThreadScheduledExecutor("sluice-loss-grace")
  private var eventLog: Option[EventLog] = None
  private val awaitingReason = ConcurrentHashMap.newKeySet[String]()

  /** Executors whose end Spark already knows. The JobMaster's report and the lost connection arrive in any order. */
  private val settled = ConcurrentHashMap.newKeySet[String]()

  override def applicationId(): String = appId

  /** Whether enough executors have registered, or the wait for them has timed out. Stays true afterwards.
    *
    * The result is kept because each call of Spark's own `isReady` writes a log line.
    */
  def ready: Boolean = {
    if (!begun) begun = isReady()
    begun
  }

  override def sufficientResourcesRegistered(): Boolean =
    totalRegisteredExecutors.get() >= initialExecutors * minRegisteredRatio

  /** Whether tasks may start: enough executors have registered, or at least one has and the grace period is over.
    *
    * If CPUs are free, all executors register within a moment, and the first stage is spread over them. On a busy
    * machine the first executor would otherwise be idle for seconds.
    */
  def hasBegun: Boolean = ready || (beginsWithFirst && totalRegisteredExecutors.get() > 0 && firstHasWaited)

  private def firstHasWaited: Boolean = {
    if (!stopping.get() && firstWaits.compareAndSet(false, true)) {
      val over: Runnable = () => {
        firstGraceOver = true
        reviveOffers()
      }
      graceTimer.schedule(over, FirstGraceMillis, TimeUnit.MILLISECONDS)
    }
    firstGraceOver
  }

  /** Counts executors that are still starting as registered, so that data is partitioned for all of them. */
  override def defaultParallelism(): Int = {
    val expected = if (ready) 0 else initialExecutors * conf.get(config.EXECUTOR_CORES)
    conf.getInt(config.DEFAULT_PARALLELISM.key, Seq(totalCoreCount.get(), expected, 2).max)
  }

  /** Waits for the executors. Spark calls this for barrier stages, and retries only after 15 s if slots are missing. */
  override def maxNumConcurrentTasks(profile: ResourceProfile): Int = {
    while (!ready && !stopping.get()) Thread.sleep(ReadyPollMillis)
    super.maxNumConcurrentTasks(profile)
  }

  override def start(): Unit = {
    super.start()
    bridge.start() // fails the SparkContext if there is no agent
    eventLog = EventLog.begin(sc)
    ShuffleService.open(new BridgeShuffleService(bridge))
    sc.addSparkListener(progress)
    sc.addSparkListener(new FetchFailureListener)
    sc.addSparkListener(new PipelinedShuffles.Listener)
    sc.addSparkListener(stages)
    sc.addSparkListener(new StreamingListener(bridge))
    sc.addSparkListener(new TaskFailures(bridge))
    sendStarted()
    sendTargets(Map(ResourceProfile.getOrCreateDefaultProfile(conf) -> initialExecutors))
  }

  override def stop(): Unit =
    if (stopping.compareAndSet(false, true)) {
      // The executors now end one after the other. The JobMaster must not replace them.
      sendTargets(Map.empty)
      try super.stop()
      finally {
        graceTimer.shutdownNow()
        ShuffleService.close()
        awaitLastEvents()
        progress.close()
        stages.close()
        eventLog.foreach(_.close())
        bridge.send(bridge.message("stopped"))
        bridge.close()
      }
    }

  /** Waits until the listeners have seen all events: Spark drains its listener bus only after this backend has stopped. */
  private def awaitLastEvents(): Unit =
    try sc.listenerBus.waitUntilEmpty(LastEventsMillis)
    catch {
      // After an interruption, what follows must be done all the same; a set flag would end the bridge's channel.
      case _: TimeoutException | _: InterruptedException =>
        logWarning("the last events are missing in the reports and the event log")
    }

  // --- requests from Spark ---

  override protected def doRequestTotalExecutors(wanted: Map[ResourceProfile, Int]): Future[Boolean] = {
    sendTargets(wanted)
    Future.successful(true)
  }

  override protected def doKillExecutors(executorIds: Seq[String]): Future[Boolean] = {
    val message = bridge.message("kill")
    val ids = message.putArray("executor_ids")
    executorIds.foreach(id => ids.add(id.toInt))
    bridge.send(message)
    Future.successful(true)
  }

  private def sendStarted(): Unit = {
    val message = bridge
      .message("started")
      .put("app_id", appId)
      .put("driver_url", driverUrl)
      .put("executor_memory_mb", sc.executorMemory)
      .put("executor_cores", conf.get(config.EXECUTOR_CORES))
    // The settings that an executor needs before it can connect to the driver.
    val startup = message.putObject("startup_conf")
    conf.getAll.foreach { case (key, value) => if (SparkConf.isExecutorStartupConf(key)) startup.put(key, value) }
    val options = message.putArray("java_options")
    Utils.splitCommandString(conf.get(config.EXECUTOR_JAVA_OPTIONS).getOrElse("")).foreach(options.add)
    val live = message.putArray("live_executors")
    getExecutorIds().foreach(id => live.add(id.toInt))
    bridge.send(message)
  }

  private def driverUrl: String =
    RpcEndpointAddress(
      conf.get(config.DRIVER_HOST_ADDRESS), conf.get(config.DRIVER_PORT), CoarseGrainedSchedulerBackend.ENDPOINT_NAME).toString

  private def sendTargets(wanted: Map[ResourceProfile, Int]): Unit = synchronized {
    val message = bridge.message("targets").put("version", targetsVersion.incrementAndGet())
    val targets = message.putArray("targets")
    wanted.foreach { case (profile, total) =>
      targets
        .addObject()
        .put("resource_profile_id", profile.id)
        .put("total", total)
        .put("cores", profile.getExecutorCores.getOrElse(conf.get(config.EXECUTOR_CORES)))
        .put("memory_mb", profile.getExecutorMemory.getOrElse(sc.executorMemory.toLong))
    }
    bridge.send(message)
  }

  // --- messages from the JobMaster ---

  private def received(message: JsonNode): Unit = message.path("type").asText() match {
    case "executor_exited" => executorExited(message)
    case "cancel"          => sc.cancelAllJobs()
    case "decommission"    => decommission(message)
    case "stop_streaming"  => stopStreaming(message.path("grace_ms").asLong(0))
    case other             => logWarning(s"the driver agent sent a message of unknown type $other")
  }

  /** Decommissions executors: they finish their tasks, migrate their blocks and exit.
    *
    * The target total stays the same, so the JobMaster replaces them.
    */
  private def decommission(message: JsonNode): Unit = {
    val known = getExecutorIds().toSet
    val info = ExecutorDecommissionInfo(message.path("reason").asText(""), None)
    val leaving = message.path("executor_ids").elements().asScala.map(_.asText()).filter(known).map(_ -> info).toArray
    decommissionExecutors(leaving, adjustTargetNumExecutors = false, triggeredByExecutor = false)
  }

  private def stopStreaming(graceMillis: Long): Unit =
    new Thread(
      () => {
        StreamingQueries.stopAll(graceMillis)
        bridge.send(bridge.message("streaming_stopped"))
      },
      "sluice-stop-streaming").start()

  private def executorExited(message: JsonNode): Unit = {
    val id = message.path("executor_id").asText()
    val byApplication = message.path("by_application").asBoolean(true)
    val why = message.path("reason").asText("")
    val reason: ExecutorLossReason =
      if (message.path("host_lost").asBoolean(false)) {
        ExecutorProcessLost(why, Some(message.path("host").asText()), byApplication)
      } else ExecutorExited(message.path("exit_code").asInt(-1), byApplication, why)
    awaitingReason.remove(id)
    // Do not report an executor twice that Spark has removed already, or is about to remove.
    if (settled.add(id) && getExecutorIds().contains(id)) removeExecutor(id, reason)
  }

  /** The connection to the agent is lost. Exits this driver, because another attempt may already start (fencing). */
  private def lost(error: Throwable): Unit =
    if (!stopping.get()) {
      logError("the connection to the driver agent was lost: this driver stops", error)
      new Thread(() => System.exit(FencedExitCode), "sluice-fenced").start()
    }

  // --- lost connections ---

  override def createDriverEndpoint(): DriverEndpoint = new SluiceDriverEndpoint

  private final class SluiceDriverEndpoint extends DriverEndpoint {
    /** Stops offering tasks to the executor, and waits for the reason of its loss.
      *
      * The connection closes at once, but the TaskManager reports the reason a moment later. The executor is removed
      * when the report arrives, or when the grace period ends.
      */
    override def onDisconnected(address: RpcAddress): Unit =
      addressToExecutorId.get(address).foreach { id =>
        if (!stopping.get() && disableExecutor(id)) {
          awaitingReason.add(id)
          graceTimer.schedule(new Runnable { override def run(): Unit = graceEnded(id) }, LossGraceMillis, TimeUnit.MILLISECONDS)
        }
      }
  }

  private def graceEnded(id: String): Unit =
    if (awaitingReason.remove(id) && settled.add(id)) {
      removeExecutor(id, ExecutorProcessLost("connection lost, no exit was reported", None, causedByApp = false))
    }
}

private[sluice] object SluiceSchedulerBackend {
  /** Exit code of a driver that lost its agent (`FENCED_EXIT_CODE` in `runtime/spark/driver/bridge.py`). */
  private val FencedExitCode = 58
  private val LossGraceMillis = 3000L
  private val LastEventsMillis = 5000L
  private val ReadyPollMillis = 50L

  /** Whether tasks may start when the first executor has registered (`begin_conf` in `runtime/spark/jvm/conf.py`). */
  private val BeginWithFirst = "spark.sluice.scheduler.beginWithFirst"
  private val FirstGraceMillis = 250L

  private val contexts = new AtomicInteger()

  /** Increases across all SparkContexts of this driver, so that the targets of the newest one always win. */
  private val targetsVersion = new AtomicLong()

  /** Returns an application id that is unique in the job, across attempts and all SparkContexts of one program. */
  private def nextApplicationId(): String =
    s"sluice-${environment("SLUICE_JOB_ID")}-${environment("SLUICE_ATTEMPT")}-${contexts.incrementAndGet()}"

  private def environment(name: String): String =
    sys.env.getOrElse(name, throw new IllegalStateException(s"$name is not set: this JVM was not started by sluice"))
}
