package org.apache.spark.shuffle.sluice

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.TimeUnit

import scala.util.control.NonFatal

import io.netty.buffer.ByteBuf

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging

/** Commits the maps of one writer of a pipelined shuffle to the workers that have all of them. Used by one thread. */
private[sluice] final class WrittenShare(
    handle: PipelinedHandle[_, _, _], writer: Int, context: TaskContext, settings: Settings)
    extends Logging {
  import WrittenShare._

  private val firstMap = context.taskAttemptId() << MapBits
  private val partitions = handle.dependency.partitioner.numPartitions.toLong
  private var holders = handle.workersOf(writer)
  private var maps = 0
  private var left = 0L
  private var last: MapPusher = _
  private var mapsReadByAll = 0L // number of maps, from the first, that every reader has read
  private var askedAt = 0

  /** Bytes that were committed, but not read yet. */
  def unread: Long = left

  /** Commits the next map. `fill` pushes its segments. */
  def map(fill: MapPusher => Unit): Unit = {
    val index = Math.addExact(Math.multiplyExact(maps, handle.writers), writer)
    val announced = Announced(index, handle.writers, holders)
    val pusher = new MapPusher(handle.allocation, handle.shuffleId, firstMap + maps, context, settings, Some(announced))
    try {
      fill(pusher)
      pusher.commit()
    } catch {
      case error: Throwable =>
        pusher.abort()
        throw error
    }
    dropHolders(holders.diff(pusher.holders), "a writer goes on without this worker")
    left = pusher.unread
    last = pusher
    maps += 1
    if (maps - askedAt >= ForgetMaps) forget()
  }

  /** Lets the workers drop maps that all readers have read, and updates the readers' progress. */
  private def forget(): Unit = {
    val found = requestFromAll("a writer goes on without this worker")(mapCountFrame(_, _, Forget, mapsReadByAll.toInt))
    // A reader that has changed its worker counts at both until both know it, at the first one with its old progress.
    // Use the counts only if every partition counts once.
    if (found.map(_.partitions).sum == partitions) mapsReadByAll = math.max(mapsReadByAll, found.map(_.maps).min)
    left = found.map(_.unread).min
    askedAt = maps
  }

  /** Updates the unread bytes by sending the last COMMIT again, which is idempotent. */
  def refreshUnread(): Unit =
    left = requestFromAll("a writer goes on without this worker")((connection, request) =>
      last.commitFrame(connection.allocator, request)).map(_.unread).min

  /** Marks the output as complete; returns when at least one worker has confirmed it. */
  def complete(): Unit = requestFromAll("a writer ended without this worker")(mapCountFrame(_, _, Complete, maps))

  /** A PRODUCE frame about the first `count` maps of this writer. */
  private def mapCountFrame(connection: PushConnection, request: Int, what: Int, count: Int): ByteBuf =
    produce(connection, request, what, count)(_.writeIntLE(handle.writers).writeIntLE(writer))

  /** Sends a frame to all holders, drops those that fail, and returns the responses. Throws if all of them fail. */
  private def requestFromAll(reason: String)(frame: (PushConnection, Int) => ByteBuf): Seq[Progress] = {
    val sent = holders.map(worker => worker -> tryTo(worker)(new PendingRequest(Workers.get.pushTo(worker), frame)))
    val answered = sent.collect { case (worker, Right(pending)) => worker -> tryTo(worker)(pending.await()) }
    val failures = (sent ++ answered).collect { case (worker, Left(failure)) => worker -> failure }
    if (failures.size == holders.size) throw failures.head._2
    dropHolders(failures.map(_._1), reason)
    answered.collect { case (_, Right(progress)) => progress }
  }

  /** Tells the readers that this writer has failed. */
  def abort(cause: Throwable): Unit = giveUp(holders, s"writer $writer failed: $cause")

  /** Drops workers that do not have all maps of this writer, and sends their readers to other workers. */
  private def dropHolders(workers: Seq[WorkerAddress], reason: String): Unit = if (workers.nonEmpty) {
    holders = holders.diff(workers)
    giveUp(workers, reason)
  }

  private def giveUp(workers: Seq[WorkerAddress], reason: String): Unit =
    workers.flatMap(Workers.get.openTo(_)).foreach { connection =>
      val text = reason.take(MostReason).getBytes(UTF_8)
      new PendingRequest(connection, produce(_, _, Aborted, 0)(_.writeBytes(text))).forget()
    }

  private def tryTo[T](worker: WorkerAddress)(work: => T): Either[Throwable, T] =
    try Right(work)
    catch {
      case interrupted: InterruptedException => throw interrupted
      case NonFatal(error) =>
        logWarning(s"shuffle ${handle.shuffleId}, writer $writer: ${worker.name}: ${error.getMessage}")
        Left(error)
    }

  private def produce(connection: PushConnection, request: Int, what: Int, count: Int)(fill: ByteBuf => Unit): ByteBuf = {
    val frame = connection.allocator.directBuffer()
    frame.writerIndex(Wire.HeaderBytes)
    fill(frame)
    Wire.putHeader(
      frame, 0, Wire.Kind.Produce, shuffle = handle.allocation.shuffleNumber, request = request,
      length = frame.readableBytes - Wire.HeaderBytes, count = count, aux = what)
    frame
  }

  /** A sent frame that expects a response. */
  private final class PendingRequest(connection: PushConnection, frame: (PushConnection, Int) => ByteBuf)
      extends PushListener {
    private val request = Connection.nextRequest()
    private var progress: Progress = _
    private var failure: WorkerFailure = _
    connection.listen(request, this)
    connection.send(frame(connection, request))

    /** Waits for the response and returns it. */
    def await(): Progress = {
      val deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Workers.get.timeoutMillis)
      try synchronized {
        while (progress == null) {
          check()
          if (System.nanoTime() > deadline) throw new WorkerFailure(s"${connection.worker.name} has not answered in time")
          wait(PushConnection.PollMillis)
        }
        progress
      } finally forget()
    }

    def forget(): Unit = connection.forget(request)

    override def accepted(found: Progress): Unit = synchronized {
      progress = found
      notifyAll()
    }

    override def refused(cause: WorkerFailure): Unit = synchronized {
      failure = cause
      notifyAll()
    }

    override def check(): Unit = {
      context.killTaskIfInterrupted()
      synchronized { if (failure != null) throw failure }
    }
  }
}

private object WrittenShare {
  /** The actions of a PRODUCE frame. */
  private val Complete = 1
  private val Aborted = 2
  private val Forget = 3

  /** Number of maps after which a writer lets workers drop read maps. Until then each takes about 2 KB on a worker. */
  private val ForgetMaps = 64

  /** Maximum characters of a reason. Stays below the protocol's limit in bytes. */
  private val MostReason = 300

  /** Bits of a map id that number the maps of one writer. */
  private val MapBits = 32
}
