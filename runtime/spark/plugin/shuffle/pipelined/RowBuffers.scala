package org.apache.spark.shuffle.sluice

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/** Buffered rows by partition, in the segment layout that [[RowReader]] expects. */
private[sluice] final class RowBuffers(partitions: Int, chunkBytes: Int) {
  import RowBuffers._

  private val chunks = new Array[ArrayBuffer[Chunk]](partitions)
  private var total = 0L

  def bytes: Long = total

  def append(partition: Int, row: UnsafeRow): Unit = {
    if (chunks(partition) == null) chunks(partition) = ArrayBuffer.empty
    val own = chunks(partition)
    val size = row.getSizeInBytes
    if (size + RowWriter.LengthBytes > chunkBytes) {
      own += new Chunk(copyOf(row, size), size, isRow = true)
    } else {
      if (own.isEmpty || !own.last.hasRoom(size + RowWriter.LengthBytes, chunkBytes)) {
        own += new Chunk(new Array[Byte](math.min(chunkBytes, math.max(FirstBytes, size + RowWriter.LengthBytes))), 0, isRow = false)
      }
      own.last.append(row, size, chunkBytes)
    }
    total += size + RowWriter.LengthBytes
  }

  private def copyOf(row: UnsafeRow, size: Int): Array[Byte] = {
    val bytes = new Array[Byte](size)
    Platform.copyMemory(row.getBaseObject, row.getBaseOffset, bytes, Platform.BYTE_ARRAY_OFFSET.toLong, size.toLong)
    bytes
  }

  /** Calls `work` for each segment with partition, content, length, mark, and whether it is the partition's last. */
  def foreachSegment(work: (Int, Array[Byte], Int, Int, Boolean) => Unit): Unit =
    for (partition <- chunks.indices if chunks(partition) != null; chunk <- chunks(partition)) {
      val isLast = chunk eq chunks(partition).last
      if (!chunk.isRow) work(partition, chunk.content, chunk.filled, 0, isLast)
      else {
        var left = Pieces.count(chunk.filled)
        Pieces.foreach(chunk.content, Platform.BYTE_ARRAY_OFFSET.toLong, chunk.filled) { (content, mark) =>
          left -= 1
          work(partition, content, content.length, mark, isLast && left == 0)
        }
      }
    }
}

private object RowBuffers {
  private val FirstBytes = 512

  /** Several rows, or a single row that is too large to share a segment. */
  private final class Chunk(var content: Array[Byte], var filled: Int, val isRow: Boolean) {
    def hasRoom(needed: Int, most: Int): Boolean = !isRow && filled + needed <= most

    def append(row: UnsafeRow, size: Int, most: Int): Unit = {
      val needed = size + RowWriter.LengthBytes
      if (filled + needed > content.length) {
        content = java.util.Arrays.copyOf(content, math.min(most, math.max(content.length * 2, filled + needed)))
      }
      val to = Platform.BYTE_ARRAY_OFFSET.toLong + filled
      Platform.putInt(content, to, size)
      Platform.copyMemory(row.getBaseObject, row.getBaseOffset, content, to + RowWriter.LengthBytes, size.toLong)
      filled += needed
    }
  }
}
