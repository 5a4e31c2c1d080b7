package org.apache.spark.shuffle.sluice

import org.apache.spark.{ShuffleDependency, SparkException, TaskContext}
import org.apache.spark.shuffle._

/** Refuses the shuffles of real-time mode if there is no shuffle service (`spark.shuffle.manager.incremental`).
  *
  * Spark's own manager opens a server on all interfaces in each map task. Any client can end the query with a few
  * bytes, because the server treats unexpected input as an error of the query.
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
    "shuffles in real-time mode need the shuffle service: enable it ([shuffle] enabled = true), or use another trigger, " +
      "such as processingTime")
}
