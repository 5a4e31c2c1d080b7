package org.apache.spark.shuffle.sluice

import java.nio.ByteOrder
import java.util.concurrent.LinkedBlockingQueue

import scala.collection.mutable

import io.netty.buffer.ByteBuf

import org.apache.spark.SparkException
import org.apache.spark.internal.Logging

/** Reads the data of one writer of a pipelined shuffle for one reduce task, from one of its workers at a time.
  *
  * All maps must arrive in order, followed by an end mark for each partition, so data that a worker omits is detected.
  * Used by one thread. Responses arrive in `arrived`.
  */
private[sluice] final class FollowedShare(
    handle: PipelinedHandle[_, _, _], writer: Int, first: Int, end: Int, settings: PipelinedSettings,
    arrived: LinkedBlockingQueue[Arrival])
    extends Logging {
  import FollowedShare._

  private val allocation = handle.allocation
  private val check = new SegmentCheck(allocation.key, allocation.shuffleNumber)
  // Null when the shuffle is not sealed.
  private val opener = if (allocation.isSealed) new SegmentOpener(SealKeys.get, allocation.shuffleNumber) else null
  private val credit = math.max(LeastCredit, settings.inFlightBytes / handle.writers)
  private val lump = math.max(1L, math.min(
    credit / LumpsOfCredit, settings.unreadBytes / (2L * handle.dependency.partitioner.numPartitions)))

  private var workers = handle.workersOf(writer)
  private var tries = 0
  private var connection: FetchConnection = _
  private var request = 0
  private var creditLimit: CreditLimit = _
  private var heardAt = System.nanoTime()

  // Progress: `maps` maps are read, and a batch of `batch` maps is being received.
  private var firstMap = -1L
  private var maps = 0
  private var batch = 0
  private var reportedMaps = 0
  private val seen = mutable.HashSet.empty[(Long, Int)] // segments of the maps in the current batch
  private var place = (-1, 0L, 0) // of the previous segment in this batch
  private val segmentsOf = new Array[Long](end - first)
  private val ended = new java.util.BitSet(end - first)
  private var read = 0L
  private var consumed = 0L
  @volatile private var isOver = false

  // Segments and bytes of this request, in the current batch and before it.
  private var inBatch = 0L
  private var bytesInBatch = 0L
  private var before = 0L
  private var bytesBefore = 0L

  private var frame: Frame = _
  private var row = 0
  private var dataAt = 0

  def bytesRead: Long = read

  def isComplete: Boolean = isOver

  /** Sends the first request. */
  def start(): Unit = requestFromNextWorker(new WorkerFailure("the writer has no worker"))

  /** Sends the request to the next worker that can be reached. */
  private def requestFromNextWorker(before: WorkerFailure): Unit = {
    var failure = before
    drop()
    while (request == 0) {
      if (tries == workers.size * TriesPerWorker) {
        throw new SparkException(
          s"shuffle ${handle.shuffleId}: the data of writer $writer is available from none of " +
            s"${workers.map(_.name).mkString(", ")}: ${failure.getMessage}", failure)
      }
      val worker = workers(tries % workers.size)
      tries += 1
      try {
        connection = Workers.get.fetchFrom(worker)
        val number = Connection.nextRequest()
        request = number
        heardAt = System.nanoTime()
        val limits = new CreditLimit(credit)
        creditLimit = limits
        connection.sendRequest(number, new ResponseListener {
          override val creditLimit: CreditLimit = limits
          override def offer(frame: Frame): Unit = arrived.add(new Arrival(writer, number, Right(frame)))
          override def fail(cause: WorkerFailure): Unit = arrived.add(new Arrival(writer, number, Left(cause)))
        })(encode(number))
      } catch {
        case unreachable: WorkerFailure =>
          logWarning(s"${worker.name} cannot be read from: ${unreachable.getMessage}")
          failure = unreachable
      }
    }
  }

  /** A FOLLOW frame for the maps of this writer after those that were read. */
  private def encode(number: Int): ByteBuf = {
    val frame = connection.allocator.directBuffer(Wire.HeaderBytes + ShareBytes)
    Wire.putHeader(
      frame, 0, Wire.Kind.Follow, shuffle = allocation.shuffleNumber, partition = first, map = read, request = number,
      length = ShareBytes, count = maps, aux = end, extra = credit)
    frame.writerIndex(Wire.HeaderBytes)
    frame.writeIntLE(handle.writers).writeIntLE(writer)
  }

  /** Handles a response; true if [[nextSegment]] has segments. */
  def take(arrival: Arrival): Boolean =
    if (arrival.request != request) {
      arrival.release()
      false
    } else {
      try arrival.what match {
        case Left(failure) => throw failure
        case Right(came) =>
          creditLimit.remove(came)
          answered(came)
      } catch {
        case failure: WorkerFailure =>
          retry(failure)
          false
      }
    }

  private def answered(came: Frame): Boolean = {
    if (came.kind == Wire.Kind.Data) {
      frame = came
      row = 0
      dataAt = came.count * Wire.DataEntryBytes
      if (came.count < 0 || came.count > came.payload.readableBytes / Wire.DataEntryBytes) {
        throw new WorkerFailure("a table that is larger than its frame")
      }
      true
    } else try {
      came.kind match {
        case Wire.Kind.Maps     => announced(came)
        case Wire.Kind.MapsSent => batchEnded(came)
        case Wire.Kind.End      => complete(came)
        case Wire.Kind.Error    => throw new WorkerFailure(came.text)
      }
      false
    } finally came.release()
  }

  /** Starts a batch of maps, which must be the next ones of this writer without a gap. */
  private def announced(came: Frame): Unit = if (came.count > 0) {
    val table = came.payload
    if (batch > 0 || table.readableBytes != came.count * MapEntryBytes) throw new WorkerFailure("an unexpected batch")
    if (firstMap < 0) firstMap = table.getLongLE(0)
    for (n <- 0 until came.count) {
      val (map, index) = (table.getLongLE(n * MapEntryBytes), table.getIntLE(n * MapEntryBytes + 8))
      if (map != firstMap + maps + n || index != (maps + n) * handle.writers + writer) {
        throw new WorkerFailure(s"map $index arrived instead of map ${(maps + n) * handle.writers + writer}")
      }
    }
    batch = came.count
    inBatch = 0
    bytesInBatch = 0
    place = (-1, 0L, 0)
    heardAt = System.nanoTime()
  }

  private def batchEnded(came: Frame): Unit = {
    if (Integer.toUnsignedLong(came.count) != inBatch || came.extra != bytesInBatch) {
      throw new WorkerFailure(s"received $inBatch segments ($bytesInBatch bytes) of ${came.count} (${came.extra})")
    }
    before += inBatch
    bytesBefore += bytesInBatch
    maps += batch
    batch = 0
    seen.clear()
    tries = 0
    if (maps - reportedMaps >= ReportMaps) grant()
  }

  /** Reports the progress to the worker and returns credit for the consumed bytes. */
  private def grant(): Unit = {
    connection.grant(request, consumed, maps)
    consumed = 0
    reportedMaps = maps
  }

  private def complete(came: Frame): Unit = {
    if (batch > 0 || (before & 0xffffffffL) != Integer.toUnsignedLong(came.count) || bytesBefore != came.extra) {
      throw new WorkerFailure("END arrived before all data")
    }
    if (ended.cardinality() != end - first) throw new WorkerFailure("END arrived before all end marks")
    isOver = true
    connection.forget(request)
    request = 0
  }

  /** The next segment of the frame from [[take]]; null at its end. */
  def nextSegment(): Segment =
    try {
      var found: Segment = null
      while (found == null && frame != null) if (row == frame.count) finishFrame() else found = segment()
      found
    } catch {
      case failure: WorkerFailure =>
        retry(failure)
        null
    }

  /** The next segment of the frame; null if it was received before or is an end mark. */
  private def segment(): Segment = {
    val payload = frame.payload
    val entry = row * Wire.DataEntryBytes
    val partition = payload.getIntLE(entry)
    val sequence = payload.getIntLE(entry + 4)
    val map = payload.getLongLE(entry + 8)
    val length = payload.getIntLE(entry + 16)
    if (length < Segments.HeadBytes || length > Wire.MaxSegmentBytes || dataAt + length > payload.readableBytes) {
      throw new WorkerFailure(s"a segment of $length bytes does not fit into its frame")
    }
    if (partition < first || partition >= end || map < firstMap + maps || map >= firstMap + maps + batch) {
      throw new WorkerFailure(s"partition $partition of map $map was not requested")
    }
    if (!isInOrder(partition, map, sequence)) {
      throw new WorkerFailure(s"partition $partition of map $map came out of order (segment $sequence)")
    }
    place = (partition, map, sequence)
    val expected = payload.getIntLE(entry + 20)
    if (opener == null && check.of(partition, map, sequence, payload.internalNioBuffer(dataAt, length)) != expected) {
      throw new WorkerFailure(s"partition $partition of map $map is corrupted (segment $sequence)")
    }
    val content =
      if (opener == null) payload.internalNioBuffer(dataAt, length)
      else opener.open(partition, map, sequence, payload, dataAt, length)
    // An empty sealed segment only marks the end of its map and partition.
    val found = if (opener == null || content.hasRemaining) SegmentContent.of(partition, map, sequence, content) else null
    row += 1
    dataAt += length
    inBatch += 1
    bytesInBatch += length
    val isNew = seen.add((map, sequence))
    if (isNew) read += length
    if (isNew && found != null) counted(found) else null
  }

  /** Whether a segment may follow the one at `place`: strictly ascending by partition, map and sequence. */
  private def isInOrder(partition: Int, map: Long, sequence: Int): Boolean = {
    val (lastPartition, lastMap, lastSequence) = place
    if (partition != lastPartition) partition > lastPartition
    else if (map != lastMap) map > lastMap
    else Integer.compareUnsigned(sequence, lastSequence) > 0
  }

  /** Counts `found` and returns it; null if it is the end mark of its partition. */
  private def counted(found: Segment): Segment = {
    val partition = found.partition
    if (ended.get(partition - first)) throw new WorkerFailure(s"a segment of partition $partition follows its end")
    if (found.codec != Segments.EndMark) {
      segmentsOf(partition - first) += 1
      found
    } else {
      val mark = found.data.duplicate().order(ByteOrder.LITTLE_ENDIAN)
      if (mark.remaining() != Flusher.EndMarkBytes || mark.getLong() != segmentsOf(partition - first)) {
        throw new WorkerFailure(s"segments of partition $partition are missing before its end mark")
      }
      if (mark.getInt() != writer) throw new WorkerFailure(s"partition $partition came from another writer than $writer")
      ended.set(partition - first)
      null
    }
  }

  private def finishFrame(): Unit = {
    if (dataAt != frame.payload.readableBytes) throw new WorkerFailure("a frame with more data than its table says")
    consumed += dataAt - frame.count * Wire.DataEntryBytes
    frame.release()
    frame = null
    heardAt = System.nanoTime()
    if (consumed >= lump) grant()
  }

  /** Tries again if no data has arrived from this writer for the timeout: its worker may be cut off from it. */
  def retryIfSilent(): Unit =
    if (request != 0 && frame == null && System.nanoTime() - heardAt > Workers.get.timeoutMillis * 1000000L) {
      retry(new WorkerFailure(s"writer $writer has sent nothing for ${Workers.get.timeoutMillis} ms"))
    }

  private def retry(failure: WorkerFailure): Unit = {
    logWarning(s"shuffle ${handle.shuffleId}: writer $writer is asked for again: ${failure.getMessage}")
    requestFromNextWorker(failure)
  }

  private def drop(): Unit = {
    if (frame != null) frame.release()
    frame = null
    if (request != 0) connection.cancel(request)
    request = 0
    batch = 0
    before = 0
    bytesBefore = 0
    consumed = 0
    reportedMaps = maps
  }

  def close(): Unit = drop()
}

private object FollowedShare {
  private val TriesPerWorker = 2
  private val LeastCredit = 64L << 10
  private val LumpsOfCredit = 4

  /** The reader reports its progress to the worker after this many maps. */
  private val ReportMaps = 16
  private val ShareBytes = 8
  private val MapEntryBytes = 12
}
