package org.apache.spark.shuffle.sluice

import org.apache.spark.storage.BlockManagerId

/** Where a shuffle worker listens. */
private[spark] final case class WorkerAddress(name: String, host: String, port: Int)

/** What the shuffle manager has given to one shuffle; travels to the executors with the shuffle's handle.
  *
  * @param shuffleNumber the shuffle's number on the data plane, unique in the job; Spark counts its own `shuffleId` from 0
  *   in each SparkContext
  * @param key the job's integrity key
  * @param isSealed whether its segments are sealed: its readers take nothing else
  */
private[spark] final class Allocation(
    val shuffleNumber: Int, val workers: Array[WorkerAddress], val replicas: Int, val key: Array[Byte],
    val isSealed: Boolean)
    extends Serializable {

  /** In the order in which a map task should try them: maps spread over the workers, and attempts begin elsewhere. */
  def candidates(mapIndex: Int, attempt: Int): Seq[WorkerAddress] = {
    val first = Math.floorMod(mapIndex + attempt, workers.length)
    workers.toSeq.drop(first) ++ workers.toSeq.take(first)
  }

  def named(name: String): Option[WorkerAddress] = workers.find(_.name == name)
}

/** Where the output of a map task is, as Spark's scheduler sees it: an executor that never dies by itself.
  *
  * Spark forgets all outputs of such an "executor" when one of them cannot be fetched, and those are just the ones that
  * the workers in its name held.
  */
private[spark] object Location {
  private val Prefix = "shuffle:"

  private[sluice] def of(holders: Seq[WorkerAddress], otherwise: WorkerAddress): BlockManagerId = {
    val first = holders.headOption.getOrElse(otherwise)
    BlockManagerId(Prefix + holders.map(_.name).mkString("+"), first.host, first.port, None)
  }

  /** The names of the workers that hold what is at `location`; empty for an executor, or an output without a byte. */
  def workers(location: BlockManagerId): Seq[String] =
    if (location == null || !location.executorId.startsWith(Prefix)) Seq.empty
    else location.executorId.stripPrefix(Prefix).split('+').toSeq.filter(_.nonEmpty)
}
