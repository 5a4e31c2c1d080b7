package org.apache.spark.shuffle.sluice

import scala.collection.mutable

import org.apache.spark.SparkEnv
import org.apache.spark.shuffle.FetchFailedException
import org.apache.spark.storage.{BlockManagerId, ShuffleBlockId}

/** The data that one reduce task reads from one location: a range of partitions of the given maps. */
private[sluice] final class MapOutputs(
    val allocation: Allocation, val shuffleId: Int, val location: BlockManagerId, val first: Int, val end: Int,
    val maps: Array[Long], indexes: mutable.LongMap[Int], val blocks: Int,
    written: Array[Array[Long]]) {

  /** The workers that hold the data, in the order in which the reader tries them. */
  val holders: Seq[WorkerAddress] = Workers.prefer(OutputLocations.known(allocation, Location.workers(location)))

  /** Requests the current workers from the driver and returns those that are not in [[holders]]. */
  def locateNewHolders(): Seq[WorkerAddress] =
    OutputLocations.locate(allocation, shuffleId, Location.workers(location)).filterNot(holders.contains)

  /** The blocks that a reader must receive if the shuffle is sealed. */
  def sealedBlocks(ordered: Boolean): SealedBlocks =
    new SealedBlocks(SealedBlocks.index(written, maps), first, maps, ordered)

  /** The exception that makes Spark recompute the map. */
  def failure(map: Long, partition: Int, cause: Throwable): FetchFailedException =
    new FetchFailedException(location, shuffleId, map, indexes.getOrElse(map, -1), partition, cause.getMessage, cause)

  def anyFailure(cause: Throwable): FetchFailedException = failure(maps.head, first, cause)
}

private[sluice] object MapOutputs {
  /** Everything that a reduce task reads, by location. Tasks start with different locations to spread the load. */
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
          case (other, _, _)             => throw new IllegalStateException(s"$other is not a shuffle block")
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
