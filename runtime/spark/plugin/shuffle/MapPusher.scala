package org.apache.spark.shuffle.sluice

import java.io.OutputStream
import java.util.concurrent.TimeUnit

import scala.collection.mutable.ArrayBuffer

import io.netty.buffer.{ByteBuf, ByteBufAllocator}

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.storage.BlockManagerId

/** A small map of a pipelined shuffle. `index` modulo the number of `writers` is the number of its writer. */
private[sluice] final case class Announced(index: Int, writers: Int, workers: Seq[WorkerAddress])

/** Pushes the output of one map attempt to its workers, segment by segment, and commits it.
  *
  * Every replica gets the same frames. A replica that fails is dropped as long as another one remains. Its partial data
  * does no harm, because only committed data can be read. Used by the task's thread only.
  */
private[sluice] final class MapPusher(
    allocation: Allocation, shuffleId: Int, map: Long, context: TaskContext, settings: Settings,
    announced: Option[Announced] = None)
    extends Logging {
  import MapPusher._

  private val candidates = announced.map(_.workers).getOrElse(Workers.prefer(
    allocation.candidates(context.partitionId(), context.attemptNumber() + context.stageAttemptNumber())))
  private val replicas = announced.map(_.workers.size).getOrElse(allocation.replicas)
  private val targets = ArrayBuffer.empty[Target]
  private val request = Connection.nextRequest()
  private var isOpen = false
  private var check: SegmentCheck = _
  private var sealer: MapSealer = _ // null if the shuffle is not sealed

  private var buffer: ByteBuf = _
  private val table = new Array[Int](MaxSegments * 4) // partition, sequence, length, check
  private var inFrame = 0
  private var segments = 0
  private var bytes = 0L

  /** Nanoseconds spent waiting for workers. */
  var waited: Long = 0L

  /** Appends a segment of `partition` and returns its length. `write` gets a buffer with room for `most` bytes.
    *
    * @param last whether this is the last segment of the partition; [[commit]] adds an empty last segment where none
    *   was marked
    */
  def segment(partition: Int, most: Int, last: Boolean = false)(write: ByteBuf => Unit): Int = {
    val out = roomFor(most + Sealing.OverheadBytes)
    val from = out.writerIndex
    if (sealer == null) write(out)
    else {
      write(out.writerIndex(from + Sealing.HeadBytes))
      sealer.seal(out, from, partition, segments, last)
    }
    val length = out.writerIndex - from
    val at = inFrame * 4
    table(at) = partition
    table(at + 1) = segments
    table(at + 2) = length
    table(at + 3) = check.of(partition, map, segments, out.internalNioBuffer(from, length))
    inFrame += 1
    segments += 1
    bytes += length
    if (out.writerIndex - DataAt >= settings.frameBytes) flush()
    length
  }

  private def roomFor(most: Int): ByteBuf = {
    if (!isOpen) open()
    if (buffer != null && (inFrame == MaxSegments || buffer.maxWritableBytes < most)) flush()
    if (buffer == null) {
      val capacity = DataAt + math.max(settings.frameBytes + settings.bufferBytes * 2, most)
      buffer = targets.head.connection.allocator.directBuffer(capacity, capacity)
      buffer.writerIndex(DataAt)
    }
    buffer
  }

  private def open(): Unit = {
    isOpen = true
    check = new SegmentCheck(allocation.key, allocation.shuffleNumber)
    if (allocation.isSealed) sealer = new MapSealer(SealKeys.get, allocation.shuffleNumber, map)
    var failure: WorkerFailure = null
    // All addresses in the handle may be outdated: then ask the driver for the current ones.
    val next = candidates.iterator ++
      Iterator.single(()).flatMap(_ => if (targets.isEmpty && announced.isEmpty) relocatedCandidates() else Nil)
    while (targets.size < replicas && next.hasNext) {
      val worker = next.next()
      try targets += new Target(Workers.get.pushTo(worker))
      catch {
        case refused: WorkerFailure =>
          logWarning(s"map $map does not go to ${worker.name}: ${refused.getMessage}")
          failure = refused
      }
    }
    if (targets.isEmpty) throw failure
    if (targets.size < replicas) {
      logWarning(s"map $map has ${targets.size} of $replicas replicas: no more workers can be reached")
    }
  }

  private def relocatedCandidates(): Seq[WorkerAddress] =
    OutputLocations.locate(allocation, shuffleId, allocation.workers.toSeq.map(_.name)).distinct
      .filter(found => allocation.named(found.name).nonEmpty && !candidates.contains(found))

  /** Sends the buffered segments as one frame. */
  private def flush(): Unit = if (inFrame > 0) {
    val tableAt = DataAt - inFrame * Wire.PushEntryBytes
    var i = 0
    while (i < inFrame * 4) {
      buffer.setIntLE(tableAt + i * 4, table(i))
      i += 1
    }
    val frame = buffer.readerIndex(tableAt - Wire.HeaderBytes)
    val length = frame.writerIndex - tableAt
    val count = inFrame
    buffer = null
    inFrame = 0
    try {
      val start = System.nanoTime()
      Wire.putHeader(
        frame, frame.readerIndex, Wire.Kind.Push, shuffle = allocation.shuffleNumber, map = map, request = request,
        length = length, count = count)
      each(target => target.connection.push(frame.retainedDuplicate(), length, target))
      waited += System.nanoTime() - start
    } finally frame.release()
  }

  /** Commits the output on all remaining replicas and returns its location. */
  def commit(): BlockManagerId = {
    if (!isOpen && announced.nonEmpty) open()
    if (isOpen) {
      if (sealer != null) sealer.unfinished.foreach(partition => segment(partition, 0, last = true)(_ => ()))
      flush()
      val start = System.nanoTime()
      each(_.sendCommit())
      each(_.awaitCommit())
      waited += System.nanoTime() - start
    }
    val location = Location.of(holders, candidates.head)
    targets.foreach(_.close())
    location
  }

  /** A COMMIT frame for the pushed segments. Its response has the number `request`. */
  def commitFrame(allocator: ByteBufAllocator, request: Int): ByteBuf = Wire.bare(
    allocator, Wire.Kind.Commit, allocation.shuffleNumber, map = map, request = request, count = segments,
    partition = announced.map(_.writers).getOrElse(0), aux = announced.map(_.index + 1).getOrElse(0), extra = bytes)

  /** The workers that have all of the output so far. */
  def holders: Seq[WorkerAddress] = targets.map(_.connection.worker).toSeq

  /** Announced bytes that readers have not read yet, on the worker with the fewest. Valid after [[commit]]. */
  def unread: Long = targets.map(_.unread).min

  /** Discards everything that was pushed. */
  def abort(): Unit = {
    if (buffer != null) buffer.release()
    buffer = null
    inFrame = 0
    targets.foreach { target =>
      target.connection.send(Wire.bare(
        target.connection.allocator, Wire.Kind.Abort, allocation.shuffleNumber, map = map, request = request))
      target.close()
    }
    targets.clear()
  }

  /** Calls `work` with every replica and drops those that fail. Throws the last failure if no replica remains. */
  private def each(work: Target => Unit): Unit = {
    var failure: WorkerFailure = null
    targets.toArray.foreach { target =>
      try work(target)
      catch {
        case failed: WorkerFailure =>
          failure = failed
          target.close()
          targets -= target
          logWarning(s"map $map goes on without ${target.connection.worker.name}: ${failed.getMessage}")
      }
    }
    if (targets.isEmpty) throw failure
  }

  /** The worker of one replica. */
  private final class Target(val connection: PushConnection) extends PushListener {
    private var isCommitted = false
    @volatile var unread = 0L
    private var failure: WorkerFailure = _
    connection.listen(request, this)

    override def accepted(progress: Progress): Unit = synchronized {
      unread = progress.unread
      isCommitted = true
      notifyAll()
    }

    override def refused(cause: WorkerFailure): Unit = synchronized {
      if (failure == null) failure = cause
      notifyAll()
    }

    override def check(): Unit = {
      context.killTaskIfInterrupted()
      synchronized { if (failure != null) throw failure }
    }

    def sendCommit(): Unit = {
      check()
      connection.send(commitFrame(connection.allocator, request))
    }

    def awaitCommit(): Unit = {
      val deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Workers.get.timeoutMillis)
      synchronized {
        while (!isCommitted) {
          check()
          if (System.nanoTime() > deadline) {
            throw new WorkerFailure(s"${connection.worker.name} has not committed map $map in time")
          }
          wait(PushConnection.PollMillis)
        }
      }
    }

    def close(): Unit = connection.forget(request)
  }
}

private[sluice] object MapPusher {
  /** Maximum number of segments in one frame. */
  private val MaxSegments = 1024

  /** Offset of a frame's data. Header and table precede it; the table ends directly before the data. */
  private val DataAt = Wire.HeaderBytes + MaxSegments * Wire.PushEntryBytes
}

/** Splits the serialized and compressed output of Spark's own writers into segments. One partition at a time. */
private[sluice] final class SegmentStream(pusher: MapPusher, partition: Int) extends OutputStream {
  import SegmentStream._

  private var chunk: Array[Byte] = _
  private var filled = 0
  private var total = 0L

  def written: Long = total

  override def write(byte: Int): Unit = {
    ensure()
    chunk(filled) = byte.toByte
    advance(1)
  }

  override def write(bytes: Array[Byte], offset: Int, length: Int): Unit = {
    var from = offset
    var left = length
    while (left > 0) {
      ensure()
      val taken = math.min(left, ChunkBytes - filled)
      System.arraycopy(bytes, from, chunk, filled, taken)
      from += taken
      left -= taken
      advance(taken)
    }
  }

  private def ensure(): Unit =
    if (chunk == null) chunk = Chunks.get()
    else if (filled == ChunkBytes) emit(last = false)

  private def advance(taken: Int): Unit = {
    filled += taken
    total += taken
  }

  private def emit(last: Boolean): Unit = if (filled > 0) {
    pusher.segment(partition, Segments.HeadBytes + filled, last) { out =>
      out.writeByte(Segments.Stored).writeIntLE(filled).writeBytes(chunk, 0, filled)
    }
    filled = 0
  }

  override def close(): Unit = {
    emit(last = true)
    chunk = null
  }
}

private[sluice] object SegmentStream {
  private val ChunkBytes = 128 << 10

  /** One buffer per task thread, because a map writes only one partition at a time. */
  private val Chunks: ThreadLocal[Array[Byte]] = ThreadLocal.withInitial(() => new Array[Byte](ChunkBytes))
}
