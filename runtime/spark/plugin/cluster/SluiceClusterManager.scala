package org.apache.spark.scheduler.cluster.sluice

import io.sluice.tls.Agent

import org.apache.spark.{SparkContext, SparkException}
import org.apache.spark.launcher.JavaModuleOptions
import org.apache.spark.scheduler.{ExternalClusterManager, SchedulerBackend, TaskScheduler, TaskSchedulerImpl}
import org.apache.spark.util.Utils

/** Runs Spark on the slots of a Sluice cluster: `spark.master=sluice://JOB_ID`.
  *
  * Found through META-INF/services. The driver's JVM is started by the driver agent (`runtime/spark/driver/main.py`), which is the
  * other end of the [[Bridge]].
  */
class SluiceClusterManager extends ExternalClusterManager {

  override def canCreate(masterURL: String): Boolean = masterURL.startsWith("sluice://")

  override def createTaskScheduler(sc: SparkContext, masterURL: String): TaskScheduler = new TaskSchedulerImpl(sc)

  override def createSchedulerBackend(
      sc: SparkContext, masterURL: String, scheduler: TaskScheduler): SchedulerBackend = {
    LauncherSettings.check(sc.conf.getAll.toMap)
    new SluiceSchedulerBackend(scheduler.asInstanceOf[TaskSchedulerImpl], sc)
  }

  override def initialize(scheduler: TaskScheduler, backend: SchedulerBackend): Unit =
    scheduler.asInstanceOf[TaskSchedulerImpl].initialize(backend)
}

/** Refuses a SparkContext whose code changed what only the launcher may decide.
  *
  * The patterns are those of `runtime/spark/jvm/conf.py`, handed over in a system property.
  */
private[sluice] object LauncherSettings {
  private val Property = "sluice.forbidden"

  /** Set by Spark and PySpark themselves on every start. */
  private val SparksOwn = Set(
    "spark.app.id", "spark.submit.deploymode", "spark.driver.port", "spark.executorenv.pythonhashseed",
    "spark.sql.hive.thriftserver.singlesession")
  private val JavaOptions = Set("spark.driver.extrajavaoptions", "spark.executor.extrajavaoptions")

  private val forbidden = {
    val patterns = Option(System.getProperty(Property)).map(_.split(',').toSeq).getOrElse(Seq.empty)
    if (patterns.isEmpty) throw new SparkException(s"$Property is not set: this JVM was not started by sluice")
    patterns.map(_.split("\\*", -1).map(java.util.regex.Pattern.quote).mkString(".*").r)
  }

  def check(settings: Map[String, String]): Unit =
    settings.foreach { case (key, value) =>
      val lowered = key.toLowerCase(java.util.Locale.ROOT)
      val launchers = Agent.launcherSettings.get(key).contains(value)
      if (!launchers && !SparksOwn(lowered) && forbidden.exists(_.matches(lowered)) && !onlyModules(lowered, value)) {
        throw new SparkException(s"a job may not set $key: the launcher decides it")
      }
    }

  /** Spark adds its module options to whatever is there; those are ours as well. */
  private def onlyModules(key: String, value: String): Boolean =
    JavaOptions(key) && {
      val known = JavaModuleOptions.defaultModuleOptionArray.toSet
      Utils.splitCommandString(value).forall(option => known(option) || option == "-Djava.net.preferIPv6Addresses=false")
    }
}
