package org.apache.spark.shuffle.sluice

import java.util.Collections

import org.apache.spark.{SparkConf, SparkEnv}
import org.apache.spark.shuffle.api.{ShuffleDataIO, ShuffleDriverComponents, ShuffleExecutorComponents}

/** Tells Spark's driver that shuffles outlive executors: `spark.shuffle.sort.io.plugin.class`. */
private[spark] final class SluiceDataIO(conf: SparkConf) extends ShuffleDataIO {
  override def driver(): ShuffleDriverComponents = new SluiceDriverComponents

  /** Not used: [[SluiceShuffleManager]] creates the components for each map attempt. */
  override def executor(): ShuffleExecutorComponents =
    throw new UnsupportedOperationException("this plugin works with SluiceShuffleManager only")
}

private final class SluiceDriverComponents extends ShuffleDriverComponents {
  override def initializeApplication(): java.util.Map[String, String] = Collections.emptyMap()

  /** Does nothing: the agent releases all shuffles when the job ends, even if this JVM has failed. */
  override def cleanupApplication(): Unit = ()

  override def supportsReliableStorage(): Boolean = true

  override def removeShuffle(shuffleId: Int, blocking: Boolean): Unit = {
    ShuffleService.whileOpen(_.unregister(shuffleId))
    SparkEnv.get.blockManager.master.removeShuffle(shuffleId, blocking) // executors drop the cached locations
  }
}
