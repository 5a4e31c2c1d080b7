package org.apache.spark.shuffle.sluice

import java.util.concurrent.TimeUnit.NANOSECONDS

import org.apache.spark.{SparkException, TaskContext, TaskKilledException}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/** Sends the rows of a map task of a pipelined shuffle in a separate thread. Each flush is one small map.
  *
  * The maps of writer w of n have the indices w, n + w, 2n + w and so on. They are committed one after the other, so
  * readers get them in this order and detect a missing one. The last map has an end mark for each partition. A writer
  * without rows regularly commits an empty map as a heartbeat, on the same path as its rows.
  */
private[sluice] final class Flusher(
    handle: PipelinedHandle[_, _, _], partitions: Int, context: TaskContext, settings: PipelinedSettings)
    extends Runnable with Logging {
  import Flusher._

  private val writer = context.partitionId()
  private val share = new WrittenShare(handle, writer, context, settings.segments)
  private val codec = settings.segments.rowCodec()
  private val segmentsOf = new Array[Long](partitions)
  private val thread = new Thread(this, s"sluice-flush-${handle.shuffleId}-$writer")

  // Guarded by this object's lock.
  private var waiting = noRows
  private var isEnding = false
  private var isOver = false
  private var failure: Throwable = _
  private var task: Thread = _

  // Used by the flusher's thread only.
  private var flushedAt = 0L
  private var askedAt = 0L
  private var sentBytes = 0L

  /** Bytes sent. Valid after [[finish]]. */
  def bytes: Long = sentBytes

  /** Starts the thread. Called by the task's thread. */
  def begin(): Unit = {
    synchronized { task = Thread.currentThread() }
    thread.setDaemon(true)
    thread.start()
  }

  /** Runs the work of the task after [[begin]]. If the flusher has failed, throws its failure instead. */
  def guard(work: => Unit): Unit =
    try work
    catch {
      case error: Throwable => throw synchronized {
        if (failure == null || failure.isInstanceOf[TaskKilledException]) error
        else {
          Thread.interrupted() // the flusher interrupted this thread
          failed
        }
      }
    } finally synchronized { task = null }

  /** Adds a row; waits while too many bytes are buffered. */
  def append(partition: Int, row: UnsafeRow): Unit = synchronized {
    while (failure == null && waiting.bytes >= settings.bufferBytes) awaitFlusher()
    if (failure != null) throw failed
    val before = waiting.bytes
    waiting.append(partition, row)
    if (before == 0 || (before < settings.flushBytes && waiting.bytes >= settings.flushBytes)) notifyAll()
  }

  /** Sends the remaining rows and completes the output; returns when a worker has confirmed it. */
  def finish(): Unit = synchronized {
    isEnding = true
    notifyAll()
    while (failure == null && !isOver) awaitFlusher()
    if (failure != null) throw failed
  }

  /** Aborts the output, unless it is already complete. */
  def abandon(reason: String): Unit = synchronized {
    if (failure == null && !isOver) {
      failure = new SparkException(s"writer $writer of shuffle ${handle.shuffleId} was given up: $reason")
      thread.interrupt()
      notifyAll()
    }
  }

  private def awaitFlusher(): Unit = {
    wait(PushConnection.PollMillis)
    context.killTaskIfInterrupted()
  }

  private def failed: Throwable =
    new SparkException(s"shuffle ${handle.shuffleId} cannot go on: ${failure.getMessage}", failure)

  override def run(): Unit =
    try {
      send(noRows, last = false)
      while (flushNext()) ()
      share.complete()
      synchronized {
        isOver = true
        notifyAll()
      }
    } catch {
      case error: Throwable =>
        synchronized {
          if (failure == null) {
            failure = error
            // The task may be waiting for its source for a long time.
            if (task != null) task.interrupt()
          }
          notifyAll()
        }
        Thread.interrupted() // clear the interrupt, so that abort can send
        share.abort(failure)
    }

  /** Waits until a flush is due, and sends the buffered rows; false after the last flush. */
  private def flushNext(): Boolean = {
    val isHeld = share.unread > settings.unreadBytes
    val (rows, last) = synchronized {
      var left = dueAt(isHeld) - System.nanoTime()
      while (failure == null && left > 0) {
        NANOSECONDS.timedWait(this, left)
        left = dueAt(isHeld) - System.nanoTime()
      }
      if (failure != null) throw failure
      val rows = if (isHeld && !isEnding) null else waiting
      if (rows != null) {
        waiting = noRows
        notifyAll()
      }
      (rows, isEnding)
    }
    if (rows != null) send(rows, last)
    else if (System.nanoTime() - flushedAt >= SignOfLifeNanos) send(noRows, last = false)
    else {
      share.refreshUnread()
      askedAt = System.nanoTime()
    }
    !last
  }

  private def dueAt(isHeld: Boolean): Long =
    if (isEnding) flushedAt
    else if (isHeld) math.max(flushedAt, askedAt) + HeldNanos
    else if (waiting.bytes == 0) flushedAt + SignOfLifeNanos
    else if (waiting.bytes >= settings.flushBytes) flushedAt
    else flushedAt + settings.flushNanos

  private def noRows: RowBuffers = new RowBuffers(partitions, settings.segments.bufferBytes)

  private def send(rows: RowBuffers, last: Boolean): Unit = {
    flushedAt = System.nanoTime()
    share.map { pusher =>
      rows.foreachSegment { (partition, content, length, mark, isLast) =>
        val most = codec.bound(length)
        sentBytes += pusher.segment(partition, most, isLast && !last)(codec.write(content, 0, length, _, mark))
        segmentsOf(partition) += 1
      }
      if (last) for (partition <- 0 until partitions) {
        pusher.segment(partition, Segments.HeadBytes + EndMarkBytes, last = true) { out =>
          out.writeByte(Segments.EndMark).writeIntLE(EndMarkBytes).writeLongLE(segmentsOf(partition)).writeIntLE(writer)
        }
      }
    }
  }
}

private[sluice] object Flusher {
  /** Length of an end mark's data: the number of segments before it (eight bytes) and the writer (four bytes). */
  val EndMarkBytes = 12

  /** Interval of the heartbeat of a writer without rows. */
  private val SignOfLifeNanos = 10L * 1000 * 1000 * 1000

  /** Interval at which a writer that is too far ahead of its readers requests their progress. */
  private val HeldNanos = 50L * 1000 * 1000
}
