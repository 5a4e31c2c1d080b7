package org.apache.spark.shuffle.sort

import org.apache.spark.{ShuffleDependency, SparkConf, SparkEnv, TaskContext}
import org.apache.spark.shuffle.{BaseShuffleHandle, ShuffleHandle, ShuffleWriteMetricsReporter, ShuffleWriter}
import org.apache.spark.shuffle.api.ShuffleExecutorComponents

/** Creates Spark's own writers, which only this package can access. They write their output to the shuffle workers. */
private[spark] object SparkWriters {

  /** Returns the handle of the writer that Spark itself would select. */
  def handle[K, V, C](conf: SparkConf, shuffleId: Int, dependency: ShuffleDependency[K, V, C]): ShuffleHandle =
    if (SortShuffleWriter.shouldBypassMergeSort(conf, dependency)) {
      new BypassMergeSortShuffleHandle[K, V](shuffleId, dependency.asInstanceOf[ShuffleDependency[K, V, V]])
    } else if (SortShuffleManager.canUseSerializedShuffle(dependency)) {
      new SerializedShuffleHandle[K, V](shuffleId, dependency.asInstanceOf[ShuffleDependency[K, V, V]])
    } else new BaseShuffleHandle(shuffleId, dependency)

  def writer[K, V](
      handle: ShuffleHandle, map: Long, context: TaskContext, conf: SparkConf, metrics: ShuffleWriteMetricsReporter,
      output: ShuffleExecutorComponents): ShuffleWriter[K, V] = {
    val blocks = SparkEnv.get.blockManager
    handle match {
      case serialized: SerializedShuffleHandle[K @unchecked, V @unchecked] =>
        new UnsafeShuffleWriter(blocks, context.taskMemoryManager(), serialized, map, context, conf, metrics, output)
      case bypass: BypassMergeSortShuffleHandle[K @unchecked, V @unchecked] =>
        new BypassMergeSortShuffleWriter(blocks, bypass, map, conf, metrics, output)
      case other: BaseShuffleHandle[K @unchecked, V @unchecked, _] =>
        new SortShuffleWriter(other.asInstanceOf[BaseShuffleHandle[K, V, Any]], map, context, metrics, output)
    }
  }
}
