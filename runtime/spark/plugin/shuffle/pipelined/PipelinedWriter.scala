package org.apache.spark.shuffle.sluice

import org.apache.spark.{SparkEnv, SparkException, TaskContext}
import org.apache.spark.scheduler.MapStatus
import org.apache.spark.shuffle.{ShuffleWriteMetricsReporter, ShuffleWriter}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.metric.SQLMetric

/** Passes SQL's rows to a [[Flusher]] as they arrive. Readers have all rows when [[write]] returns, or soon after. */
private[sluice] final class PipelinedWriter[K, V](
    handle: PipelinedHandle[K, V, _], map: Long, context: TaskContext, settings: PipelinedSettings,
    metrics: ShuffleWriteMetricsReporter)
    extends ShuffleWriter[K, V] {
  private val dependency = handle.dependency
  private val partitions = dependency.partitioner.numPartitions
  private val dataSize: SQLMetric = RowSerializer.dataSize(dependency.serializer)
  private val flusher = new Flusher(handle, partitions, context, settings)
  private var isWritten = false
  context.addTaskCompletionListener[Unit](_ => flusher.abandon("the task has ended"))

  override def write(records: Iterator[Product2[K, V]]): Unit = {
    val partitioner = dependency.partitioner
    flusher.begin()
    flusher.guard {
      while (records.hasNext) {
        val record = records.next()
        val row = record._2.asInstanceOf[UnsafeRow]
        if (dataSize != null) dataSize.add(row.getSizeInBytes.toLong)
        flusher.append(partitioner.getPartition(record._1), row)
        metrics.incRecordsWritten(1)
      }
      flusher.finish()
    }
    isWritten = true
    metrics.incBytesWritten(flusher.bytes)
  }

  override def stop(success: Boolean): Option[MapStatus] =
    if (!success || !isWritten) {
      flusher.abandon("its task has failed")
      None
    } else Some(MapStatus(SparkEnv.get.blockManager.shuffleServerId, new Array[Long](partitions), map))

  override def getPartitionLengths(): Array[Long] =
    throw new SparkException("a pipelined shuffle has no partition lengths") // only push-based merge needs them
}
