package org.apache.spark.shuffle.sluice

import java.util.concurrent.CompletableFuture

import org.apache.spark.SparkException

/** Who gives workers to shuffles: on the driver, the agent at the other end of the bridge. */
private[spark] trait ShuffleService {
  /** Workers for a shuffle; throws with a sentence when there are none. */
  def register(shuffleId: Int, partitions: Int): Allocation

  /** Where its workers are now; fails with a sentence. */
  def locate(shuffleId: Int): CompletableFuture[Seq[OutputLocation]]

  /** Nobody reads it any more. */
  def unregister(shuffleId: Int): Unit

  /** A hint: nothing could be read from these workers. */
  def lost(shuffleId: Int, workers: Seq[String]): Unit
}

/** The service of the SparkContext that this driver has. */
private[spark] object ShuffleService {
  @volatile private var service: Option[ShuffleService] = None

  def open(opened: ShuffleService): Unit = service = Some(opened)

  def close(): Unit = service = None

  def current: ShuffleService = service.getOrElse(throw new SparkException("there is no SparkContext to shuffle for"))

  /** Does something with the service unless the SparkContext has ended: everything is released then anyway. */
  def whileOpen(work: ShuffleService => Unit): Unit = service.foreach(work)
}
