package org.apache.spark.shuffle.sluice

import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.spark.{SparkEnv, SparkException}
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.{RpcCallContext, RpcEnv, ThreadSafeRpcEndpoint}
import org.apache.spark.util.RpcUtils

/** The current address of the outputs that were pushed to worker `pushedTo`: that worker, possibly at another address,
  * or its successor.
  */
private[spark] final case class OutputLocation(pushedTo: String, address: WorkerAddress)

/** An executor's request. The response is a sequence of [[OutputLocation]]. `shuffleId` is Spark's id. */
private[sluice] final case class LocateShuffle(shuffleId: Int)

/** Locates outputs that are no longer at the addresses in the shuffle's handle. */
private[sluice] object OutputLocations extends Logging {
  private val Endpoint = "sluice-output-locations"

  /** Known locations by shuffle number and worker name, shared by all tasks of this process. */
  private val knownLocations = new ConcurrentHashMap[(Int, String), Seq[WorkerAddress]]()

  @volatile private var servedBy: RpcEnv = _

  /** Starts the driver's RPC endpoint for executors, once per SparkContext. */
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

  /** The locations of the outputs of the workers `names`, as far as this process knows them. */
  def known(allocation: Allocation, names: Seq[String]): Seq[WorkerAddress] =
    names.flatMap { name =>
      Option(knownLocations.get((allocation.shuffleNumber, name))).getOrElse(allocation.named(name).toSeq)
    }

  /** Requests the current locations from the driver; empty if the driver cannot locate them. */
  def locate(allocation: Allocation, shuffleId: Int, names: Seq[String]): Seq[WorkerAddress] =
    try {
      val env = SparkEnv.get
      val found = RpcUtils.makeDriverRef(Endpoint, env.conf, env.rpcEnv).askSync[Seq[OutputLocation]](LocateShuffle(shuffleId))
      found.groupBy(_.pushedTo).foreach { case (worker, locations) =>
        knownLocations.put((allocation.shuffleNumber, worker), locations.map(_.address))
      }
      known(allocation, names)
    } catch {
      case interrupted: InterruptedException => throw interrupted
      case NonFatal(error) =>
        logWarning(s"the driver cannot locate the outputs of ${names.mkString(", ")}: ${error.getMessage}")
        Seq.empty
    }

  /** Clears the cached locations. */
  def forgetAll(): Unit = knownLocations.clear()
}
