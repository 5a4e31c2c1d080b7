package org.apache.spark.shuffle.sluice

import java.nio.ByteOrder

import org.apache.spark.TaskContext
import org.apache.spark.memory.{MemoryConsumer, MemoryMode}
import org.apache.spark.scheduler.MapStatus
import org.apache.spark.shuffle.{ShuffleWriteMetricsReporter, ShuffleWriter}
import org.apache.spark.shuffle.checksum.RowBasedChecksum
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.unsafe.Platform

/** Writes SQL's rows without sorting. Each partition has a buffer, which is compressed and pushed when it is full.
  *
  * A row is stored as its length (four bytes, native byte order) and its bytes.
  */
private[sluice] final class RowWriter[K, V](
    handle: SluiceShuffleHandle[K, V, _], map: Long, context: TaskContext, settings: Settings,
    metrics: ShuffleWriteMetricsReporter)
    extends ShuffleWriter[K, V] {
  import RowWriter._

  private val dependency = handle.dependency
  private val partitions = dependency.partitioner.numPartitions
  private val lengths = new Array[Long](partitions)
  private val buffers = new Array[Array[Byte]](partitions)
  private val filled = new Array[Int](partitions)
  private val codec = settings.rowCodec()
  private val pusher = new MapPusher(handle.allocation, handle.shuffleId, map, context, settings)
  private val memory = new Budget
  private val dataSize: SQLMetric = RowSerializer.dataSize(dependency.serializer)
  private val checksums = dependency.rowBasedChecksums
  private var status: Option[MapStatus] = None
  private var stopping = false

  override def write(records: Iterator[Product2[K, V]]): Unit = {
    val partitioner = dependency.partitioner
    var count = 0L
    while (records.hasNext) {
      val record = records.next()
      val partition = partitioner.getPartition(record._1)
      val row = record._2.asInstanceOf[UnsafeRow]
      if (checksums.nonEmpty) checksums(partition).update(record._1, row)
      if (dataSize != null) dataSize.add(row.getSizeInBytes.toLong)
      append(partition, row)
      count += 1
    }
    pushAll(last = true)
    memory.release()
    val location = pusher.commit()
    metrics.incRecordsWritten(count)
    metrics.incWriteTime(pusher.waited)
    val checksum = if (checksums.nonEmpty) RowBasedChecksum.getAggregatedChecksumValue(checksums) else 0L
    status = Some(MapStatus(location, lengths, map, checksum))
  }

  private def append(partition: Int, row: UnsafeRow): Unit = {
    val size = row.getSizeInBytes
    val needed = size + LengthBytes
    if (needed > settings.bufferBytes) pushLarge(partition, row)
    else {
      val at = filled(partition)
      val buffer = if (buffers(partition) != null && at + needed <= buffers(partition).length) buffers(partition)
        else bufferWithRoom(partition, needed)
      val to = Platform.BYTE_ARRAY_OFFSET + filled(partition)
      Platform.putInt(buffer, to.toLong, size)
      Platform.copyMemory(row.getBaseObject, row.getBaseOffset, buffer, (to + LengthBytes).toLong, size.toLong)
      filled(partition) += needed
    }
  }

  /** Returns the buffer of `partition` with room for `needed` bytes: grows it, or pushes it if it has its full size. */
  private def bufferWithRoom(partition: Int, needed: Int): Array[Byte] = {
    val old = buffers(partition)
    val capacity = if (old == null) 0 else old.length
    if (capacity == settings.bufferBytes) push(partition, last = false)
    else {
      val wanted = math.min(
        settings.bufferBytes, math.max(FirstBytes, Integer.highestOneBit(filled(partition) + needed) << 1))
      if (memory.grow(wanted - capacity)) {
        val grown = new Array[Byte](wanted)
        if (old != null) System.arraycopy(old, 0, grown, 0, filled(partition))
        buffers(partition) = grown
      } else {
        // Memory is short: push all buffers, then allocate only the one that is needed now.
        pushAll(last = false)
        memory.release()
        memory.take(wanted)
        buffers(partition) = new Array[Byte](wanted)
      }
    }
    buffers(partition)
  }

  private def pushAll(last: Boolean): Unit = {
    var partition = 0
    while (partition < partitions) {
      push(partition, last)
      buffers(partition) = null
      partition += 1
    }
  }

  private def push(partition: Int, last: Boolean): Unit = {
    val length = filled(partition)
    if (length > 0) {
      val source = buffers(partition)
      account(partition, pusher.segment(partition, codec.bound(length), last)(codec.write(source, 0, length, _)))
      filled(partition) = 0
    }
  }

  /** Pushes a row that is larger than a buffer as one or more segments of its own. */
  private def pushLarge(partition: Int, row: UnsafeRow): Unit = {
    Pieces.foreach(row.getBaseObject, row.getBaseOffset, row.getSizeInBytes) { (content, mark) =>
      account(
        partition,
        pusher.segment(partition, codec.bound(content.length))(codec.write(content, 0, content.length, _, mark)))
    }
  }

  private def account(partition: Int, bytes: Int): Unit = {
    lengths(partition) += bytes
    metrics.incBytesWritten(bytes.toLong)
  }

  override def stop(success: Boolean): Option[MapStatus] =
    if (stopping) None
    else {
      stopping = true
      memory.release()
      if (status.isEmpty) pusher.abort()
      if (success) status else None
    }

  override def getPartitionLengths(): Array[Long] = lengths

  /** Accounts for the buffers in the task's memory. */
  private final class Budget extends MemoryConsumer(context.taskMemoryManager(), MemoryMode.ON_HEAP) {
    /** Acquires `bytes`; false if there is not enough memory. */
    def grow(bytes: Int): Boolean = {
      val granted = acquireMemory(bytes.toLong)
      if (granted < bytes) freeMemory(granted)
      granted >= bytes
    }

    /** Acquires up to `bytes`. The caller allocates the buffer anyway: without one it cannot continue. */
    def take(bytes: Int): Unit = acquireMemory(bytes.toLong)

    def release(): Unit = freeMemory(getUsed)

    /** Frees nothing for other consumers, because they may call this while a buffer is being filled. */
    override def spill(size: Long, trigger: MemoryConsumer): Long = 0L
  }
}

private[sluice] object RowWriter {
  val LengthBytes = 4

  private val FirstBytes = 4096
}

/** Splits rows that are larger than a segment into pieces. [[RowReader]] joins them again.
  *
  * A piece begins with its number, the number of pieces, and the length of the row (four bytes each, little endian).
  */
private[sluice] object Pieces {
  val HeadBytes = 12

  /** Bytes of a row in one piece. Leaves room for the overhead of a codec on incompressible data. */
  val Bytes: Int = 3 << 20

  /** The number of pieces for a row of `size` bytes. */
  def count(size: Int): Int = math.max(1, ((size.toLong + Bytes - 1) / Bytes).toInt)

  private def putHead(content: Array[Byte], piece: Int, pieces: Int, size: Int): Unit = {
    val head = java.nio.ByteBuffer.wrap(content).order(ByteOrder.LITTLE_ENDIAN)
    head.putInt(piece).putInt(pieces).putInt(size)
  }

  /** Calls `work` with the content and the mark of each segment for a row of `size` bytes. */
  def foreach(base: AnyRef, offset: Long, size: Int)(work: (Array[Byte], Int) => Unit): Unit = {
    val pieces = count(size)
    var piece = 0
    while (piece < pieces) {
      val from = piece * Bytes
      val length = math.min(Bytes, size - from)
      val head = if (pieces > 1) HeadBytes else RowWriter.LengthBytes
      val content = new Array[Byte](head + length)
      if (pieces > 1) putHead(content, piece, pieces, size) else Platform.putInt(content, Platform.BYTE_ARRAY_OFFSET, size)
      Platform.copyMemory(base, offset + from, content, Platform.BYTE_ARRAY_OFFSET.toLong + head, length.toLong)
      work(content, if (pieces > 1) Segments.Piece else 0)
      piece += 1
    }
  }

  /** A row whose pieces are still incomplete. */
  final class Gathered(size: Int, pieces: Int) {
    val row = new Array[Byte](size)
    private val received = new java.util.BitSet(pieces)

    /** Adds a piece including its head; true if the row is complete. */
    def add(piece: Int, content: Array[Byte], length: Int): Boolean = {
      val from = piece * Bytes
      if (length - HeadBytes != math.min(Bytes, size - from)) throw new java.io.IOException("a piece of wrong length")
      System.arraycopy(content, HeadBytes, row, from, length - HeadBytes)
      received.set(piece)
      received.cardinality() == pieces
    }
  }
}
