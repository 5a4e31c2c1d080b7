package org.apache.spark.shuffle.sluice

import java.util.concurrent.CompletableFuture

import org.apache.spark.SparkException

/** Assigns workers to shuffles. On the driver it is implemented through the bridge to the driver agent. */
private[spark] trait ShuffleService {
  /** Assigns workers to a shuffle; throws SparkException with the reason if there are none. */
  def register(shuffleId: Int, partitions: Int): Allocation

  /** The current locations of a shuffle's outputs. The future fails with the reason. */
  def locate(shuffleId: Int): CompletableFuture[Seq[OutputLocation]]

  /** Releases a shuffle that is no longer read. */
  def unregister(shuffleId: Int): Unit

  /** Reports, as a hint, that these workers could not be read from. */
  def lost(shuffleId: Int, workers: Seq[String]): Unit
}

/** The service of this driver's current SparkContext. */
private[spark] object ShuffleService {
  @volatile private var service: Option[ShuffleService] = None

  def open(opened: ShuffleService): Unit = service = Some(opened)

  def close(): Unit = service = None

  def current: ShuffleService = service.getOrElse(throw new SparkException("there is no SparkContext to shuffle for"))

  /** Calls `work`, unless the SparkContext has ended: everything is then released anyway. */
  def whileOpen(work: ShuffleService => Unit): Unit = service.foreach(work)
}
