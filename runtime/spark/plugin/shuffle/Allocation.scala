package org.apache.spark.shuffle.sluice

import org.apache.spark.storage.BlockManagerId

/** The address of a shuffle worker. */
private[spark] final case class WorkerAddress(name: String, host: String, port: Int)

/** What the shuffle manager assigned to one shuffle. Executors get it in the shuffle's handle.
  *
  * @param shuffleNumber the shuffle's number on the data plane, unique in the job; Spark counts its own `shuffleId`
  *   from 0 in each SparkContext
  * @param key the job's integrity key
  * @param isSealed whether segments are sealed; readers then refuse unsealed segments
  */
private[spark] final class Allocation(
    val shuffleNumber: Int, val workers: Array[WorkerAddress], val replicas: Int, val key: Array[Byte],
    val isSealed: Boolean)
    extends Serializable {

  /** The workers in the order in which a map task tries them. The first one depends on the map and the attempt. */
  def candidates(mapIndex: Int, attempt: Int): Seq[WorkerAddress] = {
    val first = Math.floorMod(mapIndex + attempt, workers.length)
    workers.toSeq.drop(first) ++ workers.toSeq.take(first)
  }

  def named(name: String): Option[WorkerAddress] = workers.find(_.name == name)
}

/** The location of a map task's output for Spark's scheduler: a permanent pseudo executor named after its workers.
  *
  * If one output cannot be fetched, Spark drops all outputs of its executor. Those are exactly the outputs of the
  * workers in the pseudo executor's name.
  */
private[spark] object Location {
  private val Prefix = "shuffle:"

  private[sluice] def of(holders: Seq[WorkerAddress], otherwise: WorkerAddress): BlockManagerId = {
    val first = holders.headOption.getOrElse(otherwise)
    BlockManagerId(Prefix + holders.map(_.name).mkString("+"), first.host, first.port, None)
  }

  /** The names of the workers that hold the outputs at `location`; empty for a real executor or an empty output. */
  def workers(location: BlockManagerId): Seq[String] =
    if (location == null || !location.executorId.startsWith(Prefix)) Seq.empty
    else location.executorId.stripPrefix(Prefix).split('+').toSeq.filter(_.nonEmpty)
}
