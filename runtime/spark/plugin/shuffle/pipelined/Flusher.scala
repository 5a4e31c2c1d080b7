package org.apache.spark.shuffle.sluice

import java.util.concurrent.TimeUnit.NANOSECONDS

import org.apache.spark.{SparkException, TaskContext, TaskKilledException}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/** Sends what a map task of a pipelined shuffle has written, in a thread of its own: each time as one small map.
  *
  * The maps of writer w of n have the indices w, n + w, 2n + w and so on, and are committed one after the other, so its
  * readers get them in this order, and see if one is missing. The last one has an end mark for each partition. A writer
  * that has nothing commits an empty map now and then: a sign of life that takes the way of its rows.
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

  // Of the flusher's thread.
  private var flushedAt = 0L
  private var askedAt = 0L
  private var sentBytes = 0L

  /** Bytes sent; after [[finish]]. */
  def bytes: Long = sentBytes

  /** Begins; called by the thread of the task. */
  def begin(): Unit = {
    synchronized { task = Thread.currentThread() }
    thread.setDaemon(true)
    thread.start()
  }

  /** Runs what the task does between [[begin]] and its end, and throws why the flusher has failed if it has. */
  def guard(work: => Unit): Unit =
    try work
    catch {
      case error: Throwable => throw synchronized {
        if (failure == null || failure.isInstanceOf[TaskKilledException]) error
        else {
          Thread.interrupted() // that was us
          failed
        }
      }
    } finally synchronized { task = null }

  /** Takes a row; waits while there are too many. */
  def append(partition: Int, row: UnsafeRow): Unit = synchronized {
    while (failure == null && waiting.bytes >= settings.bufferBytes) awaitFlusher()
    if (failure != null) throw failed
    val before = waiting.bytes
    waiting.append(partition, row)
    if (before == 0 || (before < settings.flushBytes && waiting.bytes >= settings.flushBytes)) notifyAll()
  }

  /** Sends the rest and says that this is all; returns when the workers have it. */
  def finish(): Unit = synchronized {
    isEnding = true
    notifyAll()
    while (failure == null && !isOver) awaitFlusher()
    if (failure != null) throw failed
  }

  /** Nothing more comes, and what was sent counts no more unless all of it is complete. */
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
            // It may wait for its source, for long.
            if (task != null) task.interrupt()
          }
          notifyAll()
        }
        Thread.interrupted() // to be able to say so
        share.abort(failure)
    }

  /** Waits until it is time, and sends what is there; false after the last. */
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
      share.ask()
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
  /** What follows the head of an end mark: how many segments came before it, and from which writer. */
  val EndMarkBytes = 12

  /** So often a writer without rows says that it is there. */
  private val SignOfLifeNanos = 10L * 1000 * 1000 * 1000

  /** So often a writer that is too far ahead of its readers asks how far. */
  private val HeldNanos = 50L * 1000 * 1000
}
