package org.apache.spark.shuffle.sluice

import org.apache.spark.{Aggregator, InterruptibleIterator, TaskContext}
import org.apache.spark.shuffle.{ShuffleReadMetricsReporter, ShuffleReader}
import org.apache.spark.util.CompletionIterator
import org.apache.spark.util.collection.ExternalSorter

/** Reads a range of partitions for a reduce task, from all maps or a range of them. */
private[sluice] final class SluiceShuffleReader[K, C](
    handle: SluiceShuffleHandle[K, _, C], startMap: Int, endMap: Int, startPartition: Int, endPartition: Int,
    context: TaskContext, settings: Settings, metrics: ShuffleReadMetricsReporter)
    extends ShuffleReader[K, C] {
  import SluiceShuffleReader._

  private val dependency = handle.dependency

  override def read(): Iterator[Product2[K, C]] = {
    val outputs = MapOutputs.of(handle, startMap, endMap, startPartition, endPartition)
    val credit = math.max(settings.inFlightBytes / math.max(outputs.size, 1), LeastCredit)
    val readers = outputs.map(output => new SegmentReader(output, ordered = !handle.rows, credit, context))
    context.addTaskCompletionListener[Unit](_ => readers.foreach(_.close()))
    val records = outputs.zip(readers).zipWithIndex.iterator.flatMap { case ((output, reader), number) =>
      readers.slice(number, number + Ahead).foreach(_.start())
      metrics.incRemoteBlocksFetched(output.blocks.toLong)
      CompletionIterator[(Any, Any), Iterator[(Any, Any)]](recordsOf(output, reader), account(reader))
    }
    val counted = CompletionIterator[(Any, Any), Iterator[(Any, Any)]](
      records.map { record =>
        metrics.incRecordsRead(1)
        record
      },
      context.taskMetrics().mergeShuffleReadMetrics())
    ordered(aggregated(new InterruptibleIterator[(Any, Any)](context, counted)))
  }

  private def recordsOf(output: MapOutputs, reader: SegmentReader): Iterator[(Any, Any)] = {
    val codec = settings.rowCodec()
    if (handle.rows) new RowReader(reader, RowSerializer.fieldCount(dependency.serializer), codec)
    else {
      val streams = new StreamReader(reader, output.shuffleId, codec)
      val serializer = dependency.serializer.newInstance()
      Iterator.continually(streams.next()).takeWhile(_.isDefined).flatten.flatMap { stream =>
        serializer.deserializeStream(stream).asKeyValueIterator
      }
    }
  }

  private def account(reader: SegmentReader): Unit = {
    metrics.incRemoteBytesRead(reader.bytesRead)
    metrics.incFetchWaitTime(reader.waited / 1000000)
  }

  // Like Spark's BlockStoreShuffleReader.
  private def aggregated(records: Iterator[(Any, Any)]): Iterator[Product2[K, C]] = dependency.aggregator match {
    case Some(aggregator) if dependency.keyOrdering.isEmpty =>
      if (dependency.mapSideCombine) aggregator.combineCombinersByKey(records.asInstanceOf[Iterator[(K, C)]], context)
      else aggregator.asInstanceOf[Aggregator[K, Any, C]].combineValuesByKey(records.asInstanceOf[Iterator[(K, Any)]], context)
    case _ => records.asInstanceOf[Iterator[Product2[K, C]]]
  }

  private def ordered(records: Iterator[Product2[K, C]]): Iterator[Product2[K, C]] = dependency.keyOrdering match {
    case None => interruptible(records)
    case Some(ordering) =>
      val aggregator = dependency.aggregator.map(_.asInstanceOf[Aggregator[K, Any, C]]).map { each =>
        if (!dependency.mapSideCombine) each
        else {
          val combine = each.mergeCombiners.asInstanceOf[(C, Any) => C]
          new Aggregator[K, Any, C](_.asInstanceOf[C], combine, each.mergeCombiners)
        }
      }
      val sorter = new ExternalSorter[K, Any, C](
        context, aggregator, ordering = Some(ordering), serializer = dependency.serializer)
      interruptible(sorter.insertAllAndUpdateMetrics(records.asInstanceOf[Iterator[Product2[K, Any]]]))
  }

  private def interruptible(records: Iterator[Product2[K, C]]): Iterator[Product2[K, C]] = records match {
    case already: InterruptibleIterator[Product2[K, C]] => already
    case others                                         => new InterruptibleIterator[Product2[K, C]](context, others)
  }
}

private[sluice] object SluiceShuffleReader {
  /** Enough for a segment (at most 4 MiB) while up to a quarter of the credit has not been returned yet. */
  private val LeastCredit = 6L << 20

  /** How many locations are read from at the same time. */
  private val Ahead = 3
}
