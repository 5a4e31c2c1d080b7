package org.apache.spark.shuffle.sluice

import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.spark.{SparkEnv, SparkException}
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.{RpcCallContext, RpcEnv, ThreadSafeRpcEndpoint}
import org.apache.spark.util.RpcUtils

/** Where the outputs that were pushed to worker `pushedTo` are served now: there, perhaps at another address, or by its
  * successor.
  */
private[spark] final case class OutputLocation(pushedTo: String, address: WorkerAddress)

/** The question of an executor; the answer is a sequence of [[OutputLocation]]. `shuffleId` is Spark's. */
private[sluice] final case class LocateShuffle(shuffleId: Int)

/** Finds outputs that are no longer where the shuffle's handle says. */
private[sluice] object OutputLocations extends Logging {
  private val Endpoint = "sluice-output-locations"

  /** By shuffle number and name of the worker, for all tasks of this process. */
  private val moved = new ConcurrentHashMap[(Int, String), Seq[WorkerAddress]]()

  @volatile private var servedBy: RpcEnv = _

  /** On the driver: answers executors, once for each SparkContext. */
  def serve(): Unit = synchronized {
    val rpc = SparkEnv.get.rpcEnv
    if (servedBy ne rpc) {
      servedBy = rpc
      rpc.setupEndpoint(Endpoint, new ThreadSafeRpcEndpoint {
        override val rpcEnv: RpcEnv = rpc
        override def receiveAndReply(context: RpcCallContext): PartialFunction[Any, Unit] = {
          case LocateShuffle(shuffleId) =>
            ShuffleService.current.locate(shuffleId).whenComplete { (found, error) =>
              if (error == null) context.reply(found) else context.sendFailure(error)
            }
        }
      })
    }
  }

  /** Where the outputs of the workers `names` are, as far as this process knows. */
  def known(allocation: Allocation, names: Seq[String]): Seq[WorkerAddress] =
    names.flatMap(name => Option(moved.get((allocation.shuffleNumber, name))).getOrElse(allocation.named(name).toSeq))

  /** Asks the driver again; empty when it does not know either. */
  def ask(allocation: Allocation, shuffleId: Int, names: Seq[String]): Seq[WorkerAddress] =
    try {
      val env = SparkEnv.get
      val found = RpcUtils.makeDriverRef(Endpoint, env.conf, env.rpcEnv).askSync[Seq[OutputLocation]](LocateShuffle(shuffleId))
      found.groupBy(_.pushedTo).foreach { case (worker, locations) =>
        moved.put((allocation.shuffleNumber, worker), locations.map(_.address))
      }
      known(allocation, names)
    } catch {
      case interrupted: InterruptedException => throw interrupted
      case NonFatal(error) =>
        logWarning(s"the driver cannot locate the outputs of ${names.mkString(", ")}: ${error.getMessage}")
        Seq.empty
    }

  /** Forgets what the driver has answered. */
  def forgetAll(): Unit = moved.clear()
}
