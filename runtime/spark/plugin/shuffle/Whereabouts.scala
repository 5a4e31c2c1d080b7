package org.apache.spark.shuffle.sluice

import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.spark.{SparkEnv, SparkException}
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.{RpcCallContext, RpcEnv, ThreadSafeRpcEndpoint}
import org.apache.spark.util.RpcUtils

/** Where a worker's outputs are now: with the worker at another address, or with who took them over. */
private[spark] final case class Keeper(of: String, address: WorkerAddress)

/** The question of an executor; the answer is a sequence of [[Keeper]]. `shuffleId` is Spark's. */
private[sluice] final case class LocateShuffle(shuffleId: Int)

/** Finds workers that are not any more where the shuffle's handle says. */
private[sluice] object Whereabouts extends Logging {
  private val Endpoint = "sluice-whereabouts"

  /** By number on the wire and name of the worker: for all tasks of this process. */
  private val moved = new ConcurrentHashMap[(Int, String), WorkerAddress]()

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
            Registrar.current.locate(shuffleId).whenComplete { (found, error) =>
              if (error == null) context.reply(found) else context.sendFailure(error)
            }
        }
      })
    }
  }

  /** Where what `names` had is, as far as this process has heard. */
  def known(allocation: Allocation, names: Seq[String]): Seq[WorkerAddress] =
    names.flatMap(name => Option(moved.get((allocation.wireId, name))).orElse(allocation.named(name)))

  /** Asks the driver again; empty when it does not know either. */
  def ask(allocation: Allocation, shuffleId: Int, names: Seq[String]): Seq[WorkerAddress] =
    try {
      val env = SparkEnv.get
      val found = RpcUtils.makeDriverRef(Endpoint, env.conf, env.rpcEnv).askSync[Seq[Keeper]](LocateShuffle(shuffleId))
      found.foreach(keeper => moved.put((allocation.wireId, keeper.of), keeper.address))
      known(allocation, names)
    } catch {
      case interrupted: InterruptedException => throw interrupted
      case NonFatal(error) =>
        logWarning(s"the driver does not say where ${names.mkString(", ")} are: ${error.getMessage}")
        Seq.empty
    }

  /** Nobody reads the shuffle any more. */
  def forgetAll(): Unit = moved.clear()
}
