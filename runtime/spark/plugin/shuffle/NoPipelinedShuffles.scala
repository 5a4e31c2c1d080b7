package org.apache.spark.shuffle.sluice

import org.apache.spark.{ShuffleDependency, SparkException, TaskContext}
import org.apache.spark.shuffle._

/** Refuses the shuffles that a reader follows while they are written: `spark.shuffle.manager.incremental`.
  *
  * Structured Streaming's real-time mode is what asks for them. Spark's own manager of these opens a server in each map
  * task, without TLS and without authentication, and there is none of ours.
  */
private[spark] final class NoPipelinedShuffles extends PipelinedShuffleManager {
  override def registerShuffle[K, V, C](shuffleId: Int, dependency: ShuffleDependency[K, V, C]): ShuffleHandle = refuse()

  override def getWriter[K, V](
      handle: ShuffleHandle, map: Long, context: TaskContext, metrics: ShuffleWriteMetricsReporter): ShuffleWriter[K, V] =
    refuse()

  override def getReader[K, C](
      handle: ShuffleHandle, startMap: Int, endMap: Int, startPartition: Int, endPartition: Int, context: TaskContext,
      metrics: ShuffleReadMetricsReporter): ShuffleReader[K, C] = refuse()

  override def unregisterShuffle(shuffleId: Int): Boolean = true

  override def stop(): Unit = ()

  private def refuse(): Nothing = throw new SparkException(
    "shuffles in real-time mode would open listeners without mutual TLS: use another trigger, as processingTime")
}
