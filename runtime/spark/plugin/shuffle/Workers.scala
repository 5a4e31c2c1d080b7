package org.apache.spark.shuffle.sluice

import java.util.concurrent.ConcurrentHashMap

import io.netty.channel.EventLoopGroup

import org.apache.spark.{SparkConf, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.network.util.NettyUtils

/** The connections of this process: one per worker and direction, opened on first use. */
private[sluice] final class Workers(conf: SparkConf) extends Logging {
  import Workers._

  /** How long to wait for a worker that sends nothing, in milliseconds. */
  val timeoutMillis: Long = conf.getTimeAsMs(Settings.Timeout, Settings.DefaultTimeout)

  private val loops: EventLoopGroup = NettyUtils.createEventLoop(Connection.Mode, Threads, "sluice-shuffle")
  private val pushes = new ConcurrentHashMap[WorkerAddress, Slot[PushConnection]]()
  private val fetches = new ConcurrentHashMap[WorkerAddress, Slot[FetchConnection]]()

  /** Returns a connection to push to `worker`. If it cannot be reached, throws [[WorkerFailure]] and avoids it. */
  def pushTo(worker: WorkerAddress): PushConnection =
    pushes.computeIfAbsent(worker, _ => new Slot(() => new PushConnection(worker, timeoutMillis))).get()

  /** The open connection to push to `worker`, if there is one. */
  def openTo(worker: WorkerAddress): Option[PushConnection] = Option(pushes.get(worker)).flatMap(_.opened)

  def fetchFrom(worker: WorkerAddress): FetchConnection =
    fetches.computeIfAbsent(worker, _ => new Slot(() => new FetchConnection(worker))).get()

  def close(): Unit = loops.shutdownGracefully()

  private final class Slot[C <: Connection](make: () => C) {
    private var connection: Option[C] = None

    def opened: Option[C] = synchronized(connection.filter(_.isOpen))

    def get(): C = synchronized {
      connection.filter(_.isOpen).getOrElse {
        val made = make()
        try connection = Some(made.open(loops, HelloMillis))
        catch {
          case failure: WorkerFailure =>
            avoid(made.worker)
            throw failure
        }
        made
      }
    }
  }
}

private[sluice] object Workers {
  private val HelloMillis = 15000L
  private val AvoidNanos = 30L * 1000 * 1000 * 1000

  /** Event loop threads, which also encrypt, so that tasks need not wait. More threads would be idle. */
  private val Threads = 2

  private val avoided = new ConcurrentHashMap[WorkerAddress, java.lang.Long]()
  @volatile private var ours: Workers = _

  /** The connections of this process, created on first use. */
  def get: Workers = {
    if (ours == null) synchronized { if (ours == null) ours = new Workers(SparkEnv.get.conf) }
    ours
  }

  def close(): Unit = synchronized {
    if (ours != null) ours.close()
    ours = null
  }

  /** Prefers other workers for 30 s, because `worker` cannot be reached or is draining. */
  def avoid(worker: WorkerAddress): Unit = avoided.put(worker, System.nanoTime())

  def isAvoided(worker: WorkerAddress): Boolean =
    Option(avoided.get(worker)).exists(since => System.nanoTime() - since < AvoidNanos)

  /** Returns `candidates` with the avoided workers at the end. */
  def prefer(candidates: Seq[WorkerAddress]): Seq[WorkerAddress] = {
    val (bad, good) = candidates.partition(isAvoided)
    good ++ bad
  }
}
