package org.apache.spark.shuffle.sluice

import scala.collection.mutable

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging

/** A received segment. Its bytes are valid until the next one is requested. */
private[sluice] final class Segment(
    val partition: Int, val map: Long, val sequence: Int, val codec: Int, val rawLength: Int, val data: java.nio.ByteBuffer) {
  def isPiece: Boolean = (codec & Segments.Piece) != 0
}

/** The source of segments for [[RowReader]]. */
private[sluice] trait SegmentSource {
  /** The next segment; null after the last. Its bytes are valid while the caller holds this object's lock. */
  def next(): Segment
}

/** Reads the segments of [[MapOutputs]] from any of their workers. Verifies each segment and returns it once.
  *
  * @param credit maximum bytes in flight from this location to the task
  */
private[sluice] final class SegmentReader(outputs: MapOutputs, ordered: Boolean, credit: Long, context: TaskContext)
    extends SegmentSource with Logging {
  import SegmentReader._

  private val check = new SegmentCheck(outputs.allocation.key, outputs.allocation.shuffleNumber)
  // Null when the shuffle is not sealed.
  private val opener =
    if (outputs.allocation.isSealed) new SegmentOpener(SealKeys.get, outputs.allocation.shuffleNumber) else null
  private val blocks = if (opener == null) null else outputs.sealedBlocks(ordered)
  // Try each holder twice at most, because an existing connection may be broken already.
  // When all have failed, ask the driver for new addresses.
  private val tries = (outputs.holders.iterator ++
    Iterator.single(()).flatMap(_ => outputs.locateNewHolders().iterator))
    .flatMap(worker => Iterator.fill(TriesPerWorker)(worker))
  /** Received segments of the current partition, by map number and sequence. Another worker starts with it again. */
  private val inThisAnswer = mutable.HashSet.empty[Long]
  private val inEarlierAnswers = mutable.HashSet.empty[Long]
  private var request: FetchRequest = _
  private var atPartition = outputs.first
  private var frame: Frame = _
  private var row = 0
  private var dataAt = 0
  private var segments = 0L
  private var bytes = 0L
  private var isOver = false
  private var isClosed = false

  /** Bytes of all received segments. */
  var bytesRead: Long = 0L

  /** Nanoseconds spent waiting. */
  var waited: Long = 0L

  /** Sends the request early, so that data arrives before it is needed. */
  def start(): Unit = synchronized {
    if (request == null && !isOver) requestFromNextWorker(new WorkerFailure(s"no worker is known for ${outputs.location}"))
  }

  /** Sends the request to the next worker that can be reached. */
  private def requestFromNextWorker(before: WorkerFailure): Unit = {
    var failure = before
    while (request == null) {
      if (!tries.hasNext) throw outputs.anyFailure(failure)
      val worker = tries.next()
      try {
        beginAnswer()
        request = Workers.get
          .fetchFrom(worker)
          .fetch(outputs.allocation.shuffleNumber, atPartition, outputs.end, outputs.maps, ordered, credit)
      } catch {
        case unreachable: WorkerFailure =>
          logWarning(s"${worker.name} cannot be read from: ${unreachable.getMessage}")
          failure = unreachable
      }
    }
  }

  /** Resets the counts of the response. Each response must be complete, whatever earlier ones contained. */
  private def beginAnswer(): Unit = {
    segments = 0
    bytes = 0
    inEarlierAnswers ++= inThisAnswer
    inThisAnswer.clear()
    if (blocks != null) blocks.recount()
  }

  override def next(): Segment = synchronized {
    if (isClosed) throw new IllegalStateException("the task that reads has ended")
    start()
    var found: Segment = null
    while (found == null && !isOver) {
      try {
        if (frame != null && row == frame.count) finishFrame()
        if (frame == null) receive() else found = segment()
      } catch {
        case failure: WorkerFailure =>
          dropRequest()
          logWarning(s"partition $atPartition is asked for again: ${failure.getMessage}")
          if (!tries.hasNext) throw outputs.failure(outputs.maps.head, atPartition, failure)
          requestFromNextWorker(failure)
        case failure: OutOfOrder =>
          dropRequest()
          throw outputs.failure(outputs.maps.head, atPartition, failure)
      }
    }
    found
  }

  private def receive(): Unit = {
    val start = System.nanoTime()
    val came = try request.next(Workers.get.timeoutMillis, () => checkTask()) finally waited += System.nanoTime() - start
    came.kind match {
      case Wire.Kind.Data =>
        frame = came
        row = 0
        dataAt = came.count * Wire.DataEntryBytes
        if (came.count < 0 || came.count > came.payload.readableBytes / Wire.DataEntryBytes) {
          throw new WorkerFailure("a table that is larger than its frame")
        }
      case Wire.Kind.End =>
        val (count, total) = (Integer.toUnsignedLong(came.count), came.extra)
        came.release()
        if (count != segments || total != bytes) {
          throw new WorkerFailure(s"received $segments segments ($bytes bytes) of $count ($total)")
        }
        if (blocks != null) blocks.finish(atPartition, outputs.end)
        request.close(complete = true)
        request = null
        isOver = true
      case _ =>
        val text = came.text
        came.release()
        throw new WorkerFailure(text)
    }
  }

  /** The next segment of the frame; null if it was received before. */
  private def segment(): Segment = {
    val payload = frame.payload
    val entry = row * Wire.DataEntryBytes
    val partition = payload.getIntLE(entry)
    val sequence = payload.getIntLE(entry + 4)
    val map = payload.getLongLE(entry + 8)
    val length = payload.getIntLE(entry + 16)
    val expected = payload.getIntLE(entry + 20)
    if (length < Segments.HeadBytes || length > Wire.MaxSegmentBytes || dataAt + length > payload.readableBytes) {
      throw new WorkerFailure(s"a segment of $length bytes does not fit into its frame")
    }
    val mapNumber = java.util.Arrays.binarySearch(outputs.maps, map)
    if (partition < atPartition || partition >= outputs.end || mapNumber < 0) {
      throw new WorkerFailure(s"partition $partition of map $map was not requested")
    }
    if (opener == null && check.of(partition, map, sequence, payload.internalNioBuffer(dataAt, length)) != expected) {
      throw new WorkerFailure(s"partition $partition of map $map is corrupted (segment $sequence)")
    }
    val content =
      if (opener == null) payload.internalNioBuffer(dataAt, length)
      else opener.open(partition, map, sequence, payload, dataAt, length)
    val found = if (opener == null || content.hasRemaining) SegmentContent.of(partition, map, sequence, content) else null
    if (partition != atPartition) {
      if (blocks != null) blocks.finish(atPartition, partition)
      atPartition = partition
      inThisAnswer.clear()
      inEarlierAnswers.clear()
    }
    val place = mapNumber.toLong << 32 | Integer.toUnsignedLong(sequence)
    val isFirst = inThisAnswer.add(place)
    val isNew = isFirst && !inEarlierAnswers.contains(place)
    if (blocks != null) {
      if (!isFirst) throw new WorkerFailure(s"partition $partition of map $map came twice (segment $sequence)")
      blocks.add(partition, mapNumber, sequence, opener.lastCount, isNew)
    }
    row += 1
    dataAt += length
    segments += 1
    bytes += length
    bytesRead += length
    if (isNew) found else null
  }

  private def finishFrame(): Unit = {
    if (dataAt != frame.payload.readableBytes) throw new WorkerFailure("a frame with more data than its table says")
    request.consume(dataAt - frame.count * Wire.DataEntryBytes) // credit covers data, not tables
    frame.release()
    frame = null
  }

  private def dropRequest(): Unit = {
    if (frame != null) frame.release()
    frame = null
    if (request != null) request.close(complete = false)
    request = null
  }

  /** Throws if the task has ended: a Python runner reads in its own thread, which may briefly outlive the task. */
  private def checkTask(): Unit = {
    context.killTaskIfInterrupted()
    if (context.isCompleted()) throw new IllegalStateException("the task that reads has ended")
  }

  /** Ends the read, complete or not. */
  def close(): Unit = synchronized {
    isClosed = true
    isOver = true
    dropRequest()
  }
}

private[sluice] object SegmentReader {
  private val TriesPerWorker = 2

  /** Maximum raw bytes of one segment. Writers never exceed it. */
  val MaxRawBytes: Int = 16 << 20
}
