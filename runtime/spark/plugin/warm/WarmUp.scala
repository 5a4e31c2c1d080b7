package org.apache.spark.sluice

import java.io.File
import java.nio.file.{Files, Path, Paths}
import java.util.concurrent.{ThreadPoolExecutor, TimeUnit}

import io.netty.util.concurrent.GlobalEventExecutor
import org.apache.hadoop.fs.FileSystem
import org.apache.hadoop.security.UserGroupInformation
import org.apache.logging.log4j.{Level, LogManager}
import org.apache.logging.log4j.core.LoggerContext
import org.apache.logging.log4j.core.config.Configurator

import org.apache.spark.SparkConf
import org.apache.spark.deploy.SparkHadoopUtil
import org.apache.spark.internal.Logging
import org.apache.spark.sql.artifact.ArtifactManager
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.adaptive.{AdaptiveSparkPlanExec, ResultQueryStageExec}
import org.apache.spark.util.Utils

/** Runs a few queries, so that what every job needs is loaded, initialised and compiled; then takes back what they left.
  *
  * Spark is local, has one core and no authentication: a secret of it would become this process's, for all
  * time (`UserGroupInformation`). Its servers do not listen, and it asks nobody, for there is no identity (`io.sluice.tls.Guard`).
  */
object WarmUp {
  private val EndSeconds = 10
  private val EventLoopSeconds = 20
  private val EventLoop = "(rpc|shuffle|fs)-(client|server|boss)-.*".r

  private val Queries = Seq(
    "SELECT sum(id) FROM range(1000)",
    "SELECT id % 3 AS k, count(*) AS n, max(id) m, concat('a', cast(id % 3 AS string)) s FROM range(100) " +
      "GROUP BY id % 3 HAVING n > 1 ORDER BY k",
    "SELECT a.id, struct(a.id AS x, b.id AS y) s FROM range(10) a JOIN range(5) b ON a.id = b.id")

  def run(): Unit = {
    val temporary = Files.createTempDirectory(Paths.get(System.getProperty("java.io.tmpdir")), "warm-up-")
    Configurator.setRootLevel(Level.OFF)
    try query(temporary)
    finally {
      forget()
      val others = new File(System.getProperty("java.io.tmpdir")).listFiles(_.getName.startsWith("artifacts-"))
      (temporary.toFile +: others).foreach(Utils.deleteRecursively)
    }
  }

  private def query(temporary: Path): Unit = {
    val spark = SparkSession.builder().config(conf(temporary)).getOrCreate()
    try Queries.foreach(text => spark.sql(text).toJSON.collect())
    finally spark.stop()
  }

  private def conf(temporary: Path): SparkConf =
    new SparkConf(false)
      .setMaster("local[1]")
      .setAppName("warm-up")
      .set("spark.ui.enabled", "false")
      .set("spark.authenticate", "false")
      .set("spark.driver.host", "127.0.0.1")
      .set("spark.driver.bindAddress", "127.0.0.1")
      .set("spark.local.dir", temporary.toString)
      .set("spark.sql.warehouse.dir", temporary.resolve("warehouse").toString)
      .set("spark.sql.catalogImplementation", "in-memory")
      .set("spark.sql.shuffle.partitions", "2")
      // It would ask a server of Spark's for each type that generated code names, and starts threads of its own.
      .set("spark.sql.artifact.isolation.enabled", "false")
      // No thread of a pool for broadcasts, which would go on knowing this session.
      .set("spark.sql.autoBroadcastJoinThreshold", "-1")
      // Once in the life of a JVM, with the configuration of whoever is first.
      .set("spark.sql.defaultUrlStreamHandlerFactory.enabled", "false")

  private def forget(): Unit = {
    SparkSession.clearActiveSession()
    SparkSession.clearDefaultSession()
    FileSystem.closeAll()
    UserGroupInformation.reset()
    Utils.clearLocalRootDirs()
    again(SparkHadoopUtil)
    again(ArtifactManager)
    Seq(AdaptiveSparkPlanExec, ResultQueryStageExec).foreach(endThreads)
    awaitEventLoops()
    // Event loops tell it of their end.
    try GlobalEventExecutor.INSTANCE.awaitInactivity(EndSeconds, TimeUnit.SECONDS)
    catch { case _: IllegalStateException => } // Netty has not started its thread
    Logging.uninitialize()
    LogManager.getContext(false).asInstanceOf[LoggerContext].reconfigure() // as before the warm-up turned it off
  }

  /** What this object made of settings when it was first asked is made anew, of those of the job. */
  private def again(lazily: AnyRef): Unit = {
    val made = lazily.getClass.getDeclaredField("bitmap$0")
    made.setAccessible(true)
    if (made.getType == classOf[Boolean]) made.setBoolean(lazily, false) else made.setByte(lazily, 0)
  }

  /** Threads that have run queries wait for others for a minute, and know the session of the warm-up as long. */
  private def endThreads(owner: AnyRef): Unit = {
    val pool = asked(asked(owner, "executionContext"), "executor").asInstanceOf[ThreadPoolExecutor]
    val kept = pool.getKeepAliveTime(TimeUnit.NANOSECONDS)
    pool.setKeepAliveTime(1, TimeUnit.NANOSECONDS)
    val until = System.nanoTime + TimeUnit.SECONDS.toNanos(EndSeconds)
    while (pool.getPoolSize > 0) {
      if (System.nanoTime > until) throw new IllegalStateException(s"$owner still has threads")
      Thread.sleep(1)
    }
    pool.setKeepAliveTime(kept, TimeUnit.NANOSECONDS)
  }

  /** Spark does not wait for the event loops that it shuts down, which takes Netty seconds. */
  private def awaitEventLoops(): Unit = {
    val until = System.nanoTime + TimeUnit.SECONDS.toNanos(EventLoopSeconds)
    while (Thread.getAllStackTraces.keySet.stream.anyMatch(thread => EventLoop.matches(thread.getName))) {
      if (System.nanoTime > until) throw new IllegalStateException("the warm-up's event loops do not end")
      Thread.sleep(20)
    }
  }

  private def asked(whom: AnyRef, name: String): AnyRef = whom.getClass.getMethod(name).invoke(whom)
}
