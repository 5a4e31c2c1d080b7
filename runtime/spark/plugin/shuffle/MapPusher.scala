package org.apache.spark.shuffle.sluice

import java.io.OutputStream
import java.util.concurrent.TimeUnit

import scala.collection.mutable.ArrayBuffer

import io.netty.buffer.{ByteBuf, ByteBufAllocator}

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.storage.BlockManagerId

/** A map that readers follow: its index in the shuffle, modulo the number of `writers`, is that of its writer. */
private[sluice] final case class Announced(index: Int, writers: Int, workers: Seq[WorkerAddress])

/** The output of one map attempt on its way to its workers, segment by segment, until it is committed.
  *
  * Every replica gets the same frames. One that fails on the way is left out as long as another goes on; nothing that
  * was not committed can be read, so what it has does no harm. Used by the task's thread alone.
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
  private var sealer: MapSealer = _ // null: nothing is sealed

  private var buffer: ByteBuf = _
  private val table = new Array[Int](MaxSegments * 4) // partition, sequence, length, check
  private var inFrame = 0
  private var segments = 0
  private var bytes = 0L

  /** Nanoseconds spent waiting for workers. */
  var waited: Long = 0L

  /** Appends a segment of `partition`: `write` is given a buffer with room for `most` bytes. Returns its length.
    *
    * @param last whether no other segment of the partition comes after it; [[commit]] says it of those where none did
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
    // A shuffle may outlive all addresses that its handle knows: then the driver is asked where they are now.
    val next = candidates.iterator ++
      Iterator.single(()).flatMap(_ => if (targets.isEmpty && announced.isEmpty) elsewhere() else Nil)
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

  private def elsewhere(): Seq[WorkerAddress] =
    OutputLocations.ask(allocation, shuffleId, allocation.workers.toSeq.map(_.name)).distinct
      .filter(found => allocation.named(found.name).nonEmpty && !candidates.contains(found))

  /** Sends what is in the buffer. */
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

  /** Makes the output readable on as many workers as go along; returns where it is. */
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

  /** COMMIT of what was pushed, to be answered as `request`. */
  def commitFrame(allocator: ByteBufAllocator, request: Int): ByteBuf = Wire.bare(
    allocator, Wire.Kind.Commit, allocation.shuffleNumber, map = map, request = request, count = segments,
    partition = announced.map(_.writers).getOrElse(0), aux = announced.map(_.index + 1).getOrElse(0), extra = bytes)

  /** The workers that have all of it so far. */
  def holders: Seq[WorkerAddress] = targets.map(_.connection.worker).toSeq

  /** How much of what was announced is still to be read where most of it was; after [[commit]]. */
  def unread: Long = targets.map(_.unread).min

  /** Forgets everything that was pushed. */
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

  /** Does something with every replica; those that fail are left out, and the last failure counts if none is left. */
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

  /** One replica's worker. */
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
  /** Most segments in one frame. */
  private val MaxSegments = 1024

  /** Header and table of a frame lie before its data, the table right up to it. */
  private val DataAt = Wire.HeaderBytes + MaxSegments * Wire.PushEntryBytes
}

/** Spark's own serialized and compressed output, as segments. Partitions come one after the other. */
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

  /** One buffer for each task's thread: only one partition of a map is written at a time. */
  private val Chunks: ThreadLocal[Array[Byte]] = ThreadLocal.withInitial(() => new Array[Byte](ChunkBytes))
}
