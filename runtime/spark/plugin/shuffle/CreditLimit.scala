package org.apache.spark.shuffle.sluice

import java.util.concurrent.atomic.AtomicLong

/** Limits what a worker may send for one request, because this process buffers it until the task reads it.
  *
  * A worker with any credit left may send a whole frame, so it exceeds its credit by one frame at most. Credit covers
  * data only. Tables, other payloads and a fixed cost per frame are limited while they are buffered.
  *
  * @param credit bytes of data that the request grants
  */
private[sluice] final class CreditLimit(credit: Long) {
  import CreditLimit._

  private val data = new AtomicLong(credit)
  private val waiting = new AtomicLong()

  /** Adds credit for `bytes` of data. Call this before the credit is sent to the worker. */
  def grant(bytes: Long): Unit = data.addAndGet(bytes)

  /** Counts `frame` and returns whether it is within the limits. */
  def tryAdd(frame: Frame): Boolean = {
    val bytes = frame.payload.readableBytes - tableBytes(frame)
    val isGranted = frame.kind != Wire.Kind.Data || (frame.count > 0 && bytes > 0 && data.getAndAdd(-bytes) > 0)
    isGranted && waiting.addAndGet(cost(frame)) <= MostWaiting
  }

  /** Removes `frame` from the buffered bytes: the task has taken it. */
  def remove(frame: Frame): Unit = waiting.addAndGet(-cost(frame))

  private def tableBytes(frame: Frame): Long = frame.count.toLong * Wire.DataEntryBytes

  private def cost(frame: Frame): Long =
    FrameCost + (if (frame.kind == Wire.Kind.Data) tableBytes(frame) else frame.payload.readableBytes.toLong)
}

private[sluice] object CreditLimit {
  /** Maximum bytes buffered besides data. Lasts minutes if the reader stalls and a writer flushes every 10 ms. */
  val MostWaiting: Long = 16L << 20
  private val FrameCost = 128L
}
