package org.apache.spark.shuffle.sluice

import java.util.concurrent.atomic.AtomicLong

/** What a worker may still send for one request: this process keeps all of it until its task takes it.
  *
  * A worker stops when it has no credit left, and until then sends at least a segment: it goes beyond by one frame at
  * most. Credit is of data; the rest is counted while it waits, and so is each frame.
  *
  * @param credit bytes of data that the request grants
  */
private[sluice] final class Room(credit: Long) {
  import Room._

  private val data = new AtomicLong(credit)
  private val waiting = new AtomicLong()

  /** Room for `bytes` of data more; before the worker hears of it. */
  def grant(bytes: Long): Unit = data.addAndGet(bytes)

  /** Whether `frame` may come now. */
  def admits(frame: Frame): Boolean = {
    val bytes = frame.payload.readableBytes - tableBytes(frame)
    val isGranted = frame.kind != Wire.Kind.Data || (frame.count > 0 && bytes > 0 && data.getAndAdd(-bytes) > 0)
    isGranted && waiting.addAndGet(cost(frame)) <= MostWaiting
  }

  /** `frame` waits no longer. */
  def taken(frame: Frame): Unit = waiting.addAndGet(-cost(frame))

  private def tableBytes(frame: Frame): Long = frame.count.toLong * Wire.DataEntryBytes

  private def cost(frame: Frame): Long =
    FrameCost + (if (frame.kind == Wire.Kind.Data) tableBytes(frame) else frame.payload.readableBytes.toLong)
}

private[sluice] object Room {
  /** Of what is no data: minutes of a reader that takes nothing while a writer flushes every ten milliseconds. */
  val MostWaiting: Long = 16L << 20
  private val FrameCost = 128L
}
