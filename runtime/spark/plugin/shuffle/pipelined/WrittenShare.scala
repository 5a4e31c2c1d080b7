package org.apache.spark.shuffle.sluice

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.TimeUnit

import scala.util.control.NonFatal

import io.netty.buffer.ByteBuf

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging

/** The maps of one writer of a pipelined shuffle, and the workers that have all of them. Used by one thread. */
private[sluice] final class WrittenShare(
    handle: PipelinedHandle[_, _, _], writer: Int, context: TaskContext, settings: Settings)
    extends Logging {
  import WrittenShare._

  private val firstMap = context.taskAttemptId() << MapBits
  private var holders = handle.workersOf(writer)
  private var maps = 0
  private var left = 0L

  /** Bytes that were committed, and not read yet. */
  def unread: Long = left

  /** Commits the next map with what `fill` pushes. */
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
    leaveOut(holders.diff(pusher.holders), "a writer goes on without this worker")
    left = pusher.unread
    maps += 1
  }

  /** Says that these are all maps; returns when a worker knows it. */
  def complete(): Unit = {
    val asked = holders.map(worker => worker -> tryTo(worker)(new Saying(Workers.get.pushTo(worker), Complete, maps)({ payload =>
      payload.writeIntLE(handle.writers).writeIntLE(writer)
      (0 until maps).foreach(n => payload.writeLongLE(firstMap + n))
    })))
    val answered = asked.collect { case (worker, Right(saying)) => worker -> tryTo(worker)(saying.await()) }
    val failures = (asked ++ answered).collect { case (worker, Left(failure)) => worker -> failure }
    if (failures.size == holders.size) throw failures.head._2
    leaveOut(failures.map(_._1), "a writer ended without this worker")
  }

  /** Tells readers that this writer has failed. */
  def abort(cause: Throwable): Unit = giveUp(holders, s"writer $writer failed: $cause")

  /** Who reads at these workers is to read elsewhere: not all of the writer's maps are there. */
  private def leaveOut(workers: Seq[WorkerAddress], reason: String): Unit = if (workers.nonEmpty) {
    holders = holders.diff(workers)
    giveUp(workers, reason)
  }

  private def giveUp(workers: Seq[WorkerAddress], reason: String): Unit =
    workers.flatMap(Workers.get.openTo(_)).foreach { connection =>
      new Saying(connection, Aborted, count = 0)(_.writeBytes(reason.take(MostReason).getBytes(UTF_8))).forget()
    }

  private def tryTo[T](worker: WorkerAddress)(work: => T): Either[Throwable, T] =
    try Right(work)
    catch {
      case interrupted: InterruptedException => throw interrupted
      case NonFatal(error) =>
        logWarning(s"shuffle ${handle.shuffleId}, writer $writer: ${worker.name}: ${error.getMessage}")
        Left(error)
    }

  /** A PRODUCE on its way. */
  private final class Saying(connection: PushConnection, what: Int, count: Int)(fill: ByteBuf => Unit) extends PushListener {
    private val request = Connection.nextRequest()
    private var isAccepted = false
    private var failure: WorkerFailure = _
    connection.listen(request, this)
    connection.send(frame())

    private def frame(): ByteBuf = {
      val frame = connection.allocator.directBuffer()
      frame.writerIndex(Wire.HeaderBytes)
      fill(frame)
      Wire.putHeader(
        frame, 0, Wire.Kind.Produce, shuffle = handle.allocation.shuffleNumber, request = request,
        length = frame.readableBytes - Wire.HeaderBytes, count = count, aux = what)
      frame
    }

    def await(): Unit = {
      val deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Workers.get.timeoutMillis)
      try synchronized {
        while (!isAccepted) {
          check()
          if (System.nanoTime() > deadline) throw new WorkerFailure(s"${connection.worker.name} has not answered in time")
          wait(PushConnection.PollMillis)
        }
      } finally forget()
    }

    def forget(): Unit = connection.forget(request)

    override def accepted(unread: Long): Unit = synchronized {
      isAccepted = true
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
  /** What PRODUCE says. */
  private val Complete = 1
  private val Aborted = 2

  /** Characters, and less than the protocol's limit in bytes. */
  private val MostReason = 300

  /** Maps of one writer are numbered in so many bits. */
  private val MapBits = 32
}
