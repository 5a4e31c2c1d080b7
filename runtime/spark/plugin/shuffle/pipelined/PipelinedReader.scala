package org.apache.spark.shuffle.sluice

import org.apache.spark.{InterruptibleIterator, TaskContext}
import org.apache.spark.shuffle.{ShuffleReadMetricsReporter, ShuffleReader}
import org.apache.spark.util.CompletionIterator

/** Reads partitions of a pipelined shuffle while they are written. Ends when all writers have finished. */
private[sluice] final class PipelinedReader[K, C](
    handle: PipelinedHandle[K, _, C], startPartition: Int, endPartition: Int, context: TaskContext,
    settings: PipelinedSettings, metrics: ShuffleReadMetricsReporter)
    extends ShuffleReader[K, C] {

  override def read(): Iterator[Product2[K, C]] = {
    val segments = new FollowedSegments(handle, startPartition, endPartition, context, settings)
    context.addTaskCompletionListener[Unit](_ => segments.close())
    segments.start()
    val rows = new RowReader(segments, RowSerializer.fieldCount(handle.dependency.serializer), settings.segments.rowCodec())
    val counted = CompletionIterator[(Any, Any), Iterator[(Any, Any)]](
      rows.map { record =>
        metrics.incRecordsRead(1)
        record
      }, {
        metrics.incRemoteBytesRead(segments.bytesRead)
        context.taskMetrics().mergeShuffleReadMetrics()
      })
    new InterruptibleIterator[Product2[K, C]](context, counted.asInstanceOf[Iterator[Product2[K, C]]])
  }
}
