package org.apache.spark.shuffle.sluice

import java.util.Collections

import org.apache.spark.{SparkConf, SparkEnv}
import org.apache.spark.shuffle.api.{ShuffleDataIO, ShuffleDriverComponents, ShuffleExecutorComponents}

/** Tells Spark's driver that shuffles outlive executors: `spark.shuffle.sort.io.plugin.class`. */
private[spark] final class SluiceDataIO(conf: SparkConf) extends ShuffleDataIO {
  override def driver(): ShuffleDriverComponents = new SluiceDriverComponents

  /** Outputs are made for each map attempt, by [[SluiceShuffleManager]]. */
  override def executor(): ShuffleExecutorComponents =
    throw new UnsupportedOperationException("this plugin goes with SluiceShuffleManager only")
}

private final class SluiceDriverComponents extends ShuffleDriverComponents {
  override def initializeApplication(): java.util.Map[String, String] = Collections.emptyMap()

  /** The job's end releases everything: the agent sees to that, also when this JVM cannot. */
  override def cleanupApplication(): Unit = ()

  override def supportsReliableStorage(): Boolean = true

  override def removeShuffle(shuffleId: Int, blocking: Boolean): Unit = {
    ShuffleService.whileOpen(_.unregister(shuffleId))
    SparkEnv.get.blockManager.master.removeShuffle(shuffleId, blocking) // executors forget where its outputs were
  }
}
