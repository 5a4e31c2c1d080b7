package org.apache.spark.shuffle.sluice

import java.util.concurrent.{LinkedBlockingQueue, TimeUnit}

import org.apache.spark.TaskContext

/** The segments of all writers of a pipelined shuffle for one reduce task, in the order of arrival. */
private[sluice] final class FollowedSegments(
    handle: PipelinedHandle[_, _, _], first: Int, end: Int, context: TaskContext, settings: PipelinedSettings)
    extends SegmentSource {
  private val arrived = new LinkedBlockingQueue[Arrival]()
  private val shares = Array.tabulate(handle.writers)(new FollowedShare(handle, _, first, end, settings, arrived))
  private var left = shares.length
  private var current: FollowedShare = _
  @volatile private var isClosed = false

  /** Bytes of all received segments. */
  def bytesRead: Long = shares.map(_.bytesRead).sum

  def start(): Unit = synchronized(shares.foreach(_.start()))

  override def next(): Segment = synchronized {
    var found: Segment = null
    while (found == null && left > 0) {
      if (current != null) {
        found = current.nextSegment()
        if (found == null) current = null
      } else take(await())
    }
    found
  }

  private def take(arrival: Arrival): Unit = {
    val share = shares(arrival.writer)
    val before = share.isComplete // responses to cancelled requests may arrive late
    if (share.take(arrival)) current = share
    if (share.isComplete && !before) left -= 1
  }

  private def await(): Arrival = {
    var arrival = arrived.poll()
    while (arrival == null) {
      context.killTaskIfInterrupted()
      // A Python runner reads in its own thread, which may briefly outlive the task.
      if (isClosed || context.isCompleted()) throw new IllegalStateException("the task that reads has ended")
      arrival = arrived.poll(PushConnection.PollMillis, TimeUnit.MILLISECONDS)
      if (arrival == null) shares.foreach(_.retryIfSilent())
    }
    arrival
  }

  /** Ends the read, complete or not. */
  def close(): Unit = {
    isClosed = true
    synchronized {
      left = 0
      shares.foreach(_.close())
      Iterator.continually(arrived.poll()).takeWhile(_ != null).foreach(_.release())
    }
  }
}

/** A response to the request with the number `request` for the maps of `writer`. */
private[sluice] final class Arrival(val writer: Int, val request: Int, val what: Either[WorkerFailure, Frame]) {
  def release(): Unit = what.foreach(_.release())
}
