package org.apache.spark.shuffle.sluice

import org.apache.spark.{ShuffleDependency, SparkConf, TaskContext}
import org.apache.spark.internal.config
import org.apache.spark.network.buffer.ManagedBuffer
import org.apache.spark.network.shuffle.MergedBlockMeta
import org.apache.spark.scheduler.MapStatus
import org.apache.spark.shuffle._
import org.apache.spark.shuffle.sort.SparkWriters
import org.apache.spark.storage.{BlockId, BlockManagerId, ShuffleMergedBlockId}

/** The handle of a shuffle whose data is stored by the workers of its allocation.
  *
  * @param rows whether SQL rows are pushed directly; otherwise one of Spark's own writers writes, selected by `inner`
  */
private[spark] final class SluiceShuffleHandle[K, V, C](
    shuffleId: Int, dependency: ShuffleDependency[K, V, C], private[sluice] val allocation: Allocation,
    val rows: Boolean, val inner: ShuffleHandle)
    extends BaseShuffleHandle[K, V, C](shuffleId, dependency)

/** The shuffle manager for the remote shuffle service (`spark.shuffle.manager`).
  *
  * On executors it reads and writes, on the driver it requests workers. It never falls back to Spark's own shuffle.
  */
private[spark] final class SluiceShuffleManager(conf: SparkConf, isDriver: Boolean) extends BlockingShuffleManager {
  private val settings = new Settings(conf)

  override def registerShuffle[K, V, C](shuffleId: Int, dependency: ShuffleDependency[K, V, C]): ShuffleHandle = {
    OutputLocations.serve()
    val allocation = ShuffleService.current.register(shuffleId, dependency.partitioner.numPartitions)
    // Only Spark's own streams implement its encryption (spark.io.encryption).
    val rows = !dependency.mapSideCombine && RowSerializer.supports(dependency.serializer) &&
      !conf.get(config.IO_ENCRYPTION_ENABLED)
    new SluiceShuffleHandle(shuffleId, dependency, allocation, rows, SparkWriters.handle(conf, shuffleId, dependency))
  }

  override def getWriter[K, V](
      handle: ShuffleHandle, map: Long, context: TaskContext, metrics: ShuffleWriteMetricsReporter): ShuffleWriter[K, V] = {
    val ours = handle.asInstanceOf[SluiceShuffleHandle[K, V, Any]]
    if (ours.rows) new RowWriter[K, V](ours, map, context, settings, metrics)
    else {
      val output = new MapOutput(new MapPusher(ours.allocation, ours.shuffleId, map, context, settings))
      new RelocatedWriter(SparkWriters.writer[K, V](ours.inner, map, context, conf, metrics, output), output)
    }
  }

  override def getReader[K, C](
      handle: ShuffleHandle, startMap: Int, endMap: Int, startPartition: Int, endPartition: Int, context: TaskContext,
      metrics: ShuffleReadMetricsReporter): ShuffleReader[K, C] =
    new SluiceShuffleReader[K, C](
      handle.asInstanceOf[SluiceShuffleHandle[K, Any, C]], startMap, endMap, startPartition, endPartition, context,
      settings, metrics)

  /** Does nothing: executors store no shuffle data, and [[SluiceDriverComponents]] releases it on the driver. */
  override def unregisterShuffle(shuffleId: Int): Boolean = true

  override val shuffleBlockResolver: ShuffleBlockResolver = NoBlocks

  override def stop(): Unit = if (!isDriver) {
    Workers.close()
    OutputLocations.forgetAll()
  }
}

/** Serves no blocks: executors store no shuffle data. */
private object NoBlocks extends ShuffleBlockResolver {
  override def getBlockData(block: BlockId, directories: Option[Array[String]]): ManagedBuffer = none(block)
  override def getMergedBlockData(block: ShuffleMergedBlockId, directories: Option[Array[String]]): Seq[ManagedBuffer] =
    none(block)
  override def getMergedBlockMeta(block: ShuffleMergedBlockId, directories: Option[Array[String]]): MergedBlockMeta =
    none(block)
  override def stop(): Unit = ()

  private def none(block: BlockId): Nothing =
    throw new UnsupportedOperationException(s"$block is with the shuffle workers, not here")
}

/** Wraps one of Spark's own writers: sets the real location of the output, and discards it if the task fails. */
private final class RelocatedWriter[K, V](writer: ShuffleWriter[K, V], output: MapOutput) extends ShuffleWriter[K, V] {
  override def write(records: Iterator[Product2[K, V]]): Unit = writer.write(records)

  override def stop(success: Boolean): Option[MapStatus] = {
    val status = writer.stop(success)
    if (!success) output.abandon()
    status.foreach(_.updateLocation(output.location))
    status
  }

  override def getPartitionLengths(): Array[Long] = writer.getPartitionLengths()
}
