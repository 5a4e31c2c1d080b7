package org.apache.spark.shuffle.sluice

import scala.collection.mutable

import org.apache.spark.SparkEnv
import org.apache.spark.shuffle.FetchFailedException
import org.apache.spark.storage.{BlockManagerId, ShuffleBlockId}

/** What one reduce task reads from one location: these maps, a range of partitions. */
private[sluice] final class MapOutputs(
    val allocation: Allocation, val shuffleId: Int, val location: BlockManagerId, val first: Int, val end: Int,
    val maps: Array[Long], indexes: mutable.LongMap[Int], val blocks: Int,
    written: Array[Array[Long]]) {

  /** The workers that hold it, in the order in which they are to be asked. */
  val holders: Seq[WorkerAddress] = Workers.prefer(OutputLocations.known(allocation, Location.workers(location)))

  /** Holders at addresses that were not tried before; asks the driver. */
  def moved(): Seq[WorkerAddress] =
    OutputLocations.ask(allocation, shuffleId, Location.workers(location)).filterNot(holders.contains)

  /** What has to come of it, when it is sealed. */
  def sealedBlocks(ordered: Boolean): SealedBlocks =
    new SealedBlocks(SealedBlocks.index(written, maps), first, maps, ordered)

  /** Tells Spark that it must be computed again. */
  def failure(map: Long, partition: Int, cause: Throwable): FetchFailedException =
    new FetchFailedException(location, shuffleId, map, indexes.getOrElse(map, -1), partition, cause.getMessage, cause)

  def anyFailure(cause: Throwable): FetchFailedException = failure(maps.head, first, cause)
}

private[sluice] object MapOutputs {
  /** Everything that a reduce task reads, by location; the first one is not the same for every task. */
  def of(
      handle: SluiceShuffleHandle[_, _, _], startMap: Int, endMap: Int, startPartition: Int, endPartition: Int): Seq[MapOutputs] = {
    val found = SparkEnv.get.mapOutputTracker
      .getMapSizesByExecutorId(handle.shuffleId, startMap, endMap, startPartition, endPartition)
      .flatMap { case (location, blocks) =>
        val indexes = mutable.LongMap.empty[Int]
        var wanted = 0
        val isSealed = handle.allocation.isSealed
        val written = Array.fill(if (isSealed) endPartition - startPartition else 0)(mutable.ArrayBuilder.make[Long])
        blocks.foreach {
          case (ShuffleBlockId(_, map, partition), size, index) if size > 0 =>
            indexes(map) = index
            if (isSealed) written(partition - startPartition) += map
            wanted += 1
          case (_: ShuffleBlockId, _, _) => ()
          case (other, _, _)             => throw new IllegalStateException(s"$other is nothing that was written here")
        }
        val blocksOf = written.map(_.result())
        indexes.keysIterator.toArray.sorted.grouped(Wire.MaxMapsPerFetch).map { maps =>
          new MapOutputs(
            handle.allocation, handle.shuffleId, location, startPartition, endPartition, maps, indexes, wanted,
            blocksOf)
        }
      }
      .toSeq
      .sortBy(_.location.executorId)
    if (found.isEmpty) found
    else {
      val from = startPartition % found.size
      found.drop(from) ++ found.take(from)
    }
  }
}
