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

/** Runs a few queries to load, initialise and compile the classes that every job needs, then resets the global state.
  *
  * Spark runs locally with one core and without authentication: a secret would stay in this process for its lifetime
  * (`UserGroupInformation`). Its servers do not listen and it opens no connection, because the process has no identity
  * yet (`io.sluice.tls.Guard`).
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
      // Isolation would request each type in generated code from a server of Spark, and start threads of its own.
      .set("spark.sql.artifact.isolation.enabled", "false")
      // A broadcast would start pool threads that keep a reference to this session.
      .set("spark.sql.autoBroadcastJoinThreshold", "-1")
      // The factory can be set once per JVM, and would keep the configuration of the warm-up.
      .set("spark.sql.defaultUrlStreamHandlerFactory.enabled", "false")

  private def forget(): Unit = {
    SparkSession.clearActiveSession()
    SparkSession.clearDefaultSession()
    FileSystem.closeAll()
    UserGroupInformation.reset()
    Utils.clearLocalRootDirs()
    resetLazyValues(SparkHadoopUtil)
    resetLazyValues(ArtifactManager)
    Seq(AdaptiveSparkPlanExec, ResultQueryStageExec).foreach(endThreads)
    awaitEventLoops()
    // Event loops notify this executor of their termination.
    try GlobalEventExecutor.INSTANCE.awaitInactivity(EndSeconds, TimeUnit.SECONDS)
    catch { case _: IllegalStateException => } // Netty has not started its thread
    Logging.uninitialize()
    LogManager.getContext(false).asInstanceOf[LoggerContext].reconfigure() // undoes setRootLevel(OFF)
  }

  /** Resets the lazy values of `owner`, so that they are computed again from the job's settings. */
  private def resetLazyValues(owner: AnyRef): Unit = {
    val made = owner.getClass.getDeclaredField("bitmap$0")
    made.setAccessible(true)
    if (made.getType == classOf[Boolean]) made.setBoolean(owner, false) else made.setByte(owner, 0)
  }

  /** Ends the idle pool threads, which would otherwise keep the warm-up's session alive for a minute. */
  private def endThreads(owner: AnyRef): Unit = {
    val pool = invokeGetter(invokeGetter(owner, "executionContext"), "executor").asInstanceOf[ThreadPoolExecutor]
    val kept = pool.getKeepAliveTime(TimeUnit.NANOSECONDS)
    pool.setKeepAliveTime(1, TimeUnit.NANOSECONDS)
    val until = System.nanoTime + TimeUnit.SECONDS.toNanos(EndSeconds)
    while (pool.getPoolSize > 0) {
      if (System.nanoTime > until) throw new IllegalStateException(s"$owner still has threads")
      Thread.sleep(1)
    }
    pool.setKeepAliveTime(kept, TimeUnit.NANOSECONDS)
  }

  /** Waits for the event loops. Spark shuts them down without waiting, and Netty takes seconds for it. */
  private def awaitEventLoops(): Unit = {
    val until = System.nanoTime + TimeUnit.SECONDS.toNanos(EventLoopSeconds)
    while (Thread.getAllStackTraces.keySet.stream.anyMatch(thread => EventLoop.matches(thread.getName))) {
      if (System.nanoTime > until) throw new IllegalStateException("the warm-up's event loops did not stop in time")
      Thread.sleep(20)
    }
  }

  private def invokeGetter(target: AnyRef, name: String): AnyRef = target.getClass.getMethod(name).invoke(target)
}
