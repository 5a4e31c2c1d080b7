package org.apache.spark.scheduler.cluster.sluice

import io.sluice.tls.Agent

import org.apache.spark.{SparkContext, SparkException}
import org.apache.spark.launcher.JavaModuleOptions
import org.apache.spark.scheduler.{ExternalClusterManager, SchedulerBackend, TaskScheduler, TaskSchedulerImpl}
import org.apache.spark.util.Utils

/** Runs Spark on the slots of a Sluice cluster: `spark.master=sluice://JOB_ID`.
  *
  * Spark finds this class through META-INF/services. The driver agent (`runtime/spark/driver/main.py`) starts the
  * driver's JVM and is the other end of the [[Bridge]].
  */
class SluiceClusterManager extends ExternalClusterManager {

  override def canCreate(masterURL: String): Boolean = masterURL.startsWith("sluice://")

  override def createTaskScheduler(sc: SparkContext, masterURL: String): TaskScheduler = new SluiceTaskScheduler(sc)

  override def createSchedulerBackend(
      sc: SparkContext, masterURL: String, scheduler: TaskScheduler): SchedulerBackend = {
    LauncherSettings.check(sc.conf.getAll.toMap)
    new SluiceSchedulerBackend(scheduler.asInstanceOf[TaskSchedulerImpl], sc)
  }

  override def initialize(scheduler: TaskScheduler, backend: SchedulerBackend): Unit =
    scheduler.asInstanceOf[TaskSchedulerImpl].initialize(backend)
}

/** Refuses a SparkContext if the program changed a setting that jobs may not change.
  *
  * The patterns come from `runtime/spark/jvm/job_conf.py`, which passes them in system properties.
  */
private[sluice] object LauncherSettings {
  private val Reserved = "sluice.conf.reserved"
  private val Allowed = "sluice.conf.allowed"

  /** Settings that Spark and PySpark themselves make on every start. */
  private val SparksOwn = Set(
    "spark.app.id", "spark.app.attempt.id", "spark.app.starttime", "spark.app.submittime",
    "spark.app.initial.archive.urls", "spark.app.initial.file.urls", "spark.app.initial.jar.urls", "spark.executor.id",
    "spark.submit.deploymode", "spark.driver.port", "spark.executorenv.pythonhashseed",
    "spark.sql.hive.thriftserver.singlesession")
  private val JavaOptions = Set("spark.driver.extrajavaoptions", "spark.executor.extrajavaoptions")

  private val reserved = patterns(Reserved)
  private val allowed = patterns(Allowed)

  def check(settings: Map[String, String]): Unit =
    settings.foreach { case (key, value) =>
      val lowered = key.toLowerCase(java.util.Locale.ROOT)
      val launchers = Agent.launcherSettings.get(key).contains(value)
      if (!launchers && !SparksOwn(lowered) && !onlyModules(lowered, value)) {
        if (reserved.exists(_.matches(lowered))) {
          throw new SparkException(s"a job may not set $key: the launcher decides it")
        }
        if (key.startsWith("spark.") && !allowed.exists(_.matches(key))) {
          throw new SparkException(s"a job may not set $key: it is not among the allowed settings; " +
            "ask the operator to add it to allow_conf in [jobs]")
        }
      }
    }

  private def patterns(property: String) = {
    val texts = Option(System.getProperty(property)).map(_.split(',').toSeq).getOrElse(Seq.empty)
    if (texts.isEmpty) throw new SparkException(s"$property is not set: this JVM was not started by sluice")
    texts.map(_.split("\\*", -1).map(java.util.regex.Pattern.quote).mkString(".*").r)
  }

  /** Whether `value` has only the module options that Spark itself appends; the launcher sets the same ones. */
  private def onlyModules(key: String, value: String): Boolean =
    JavaOptions(key) && {
      val known = JavaModuleOptions.defaultModuleOptionArray.toSet
      Utils.splitCommandString(value).forall(option => known(option) || option == "-Djava.net.preferIPv6Addresses=false")
    }
}
