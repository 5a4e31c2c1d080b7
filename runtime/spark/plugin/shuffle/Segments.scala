package org.apache.spark.shuffle.sluice

import java.io.IOException
import java.nio.{ByteBuffer, ByteOrder}
import java.util.zip.CRC32C

import com.github.luben.zstd.Zstd
import io.netty.buffer.ByteBuf
import net.jpountz.lz4.{LZ4Exception, LZ4Factory}

/** The check value of a segment: CRC32C over the job's key, the segment's place and its bytes. Not thread-safe. */
private[sluice] final class SegmentCheck(key: Array[Byte], shuffle: Int) {
  private val crc = new CRC32C
  private val prefix = ByteBuffer.allocate(key.length + 20).order(ByteOrder.LITTLE_ENDIAN)
  prefix.put(key).putInt(shuffle)
  private val variableAt = prefix.position()

  def of(partition: Int, map: Long, sequence: Int, data: ByteBuffer): Int = {
    prefix.position(variableAt)
    prefix.putInt(partition).putLong(map).putInt(sequence)
    crc.reset()
    crc.update(prefix.array(), 0, prefix.capacity())
    crc.update(data)
    crc.getValue.toInt
  }
}

/** The layout of a segment's content: codec (one byte), raw length (four bytes), then the data.
  *
  * A row that is larger than a segment is split into several, each marked with [[Piece]]; see [[Pieces]].
  */
private[sluice] object Segments {
  val HeadBytes = 5
  val Stored: Byte = 0
  val Lz4: Byte = 1
  val Zstandard: Byte = 2
  val Piece: Int = 0x80

  /** Marks the end of one writer's data for a partition. Its data begins with the number of segments before it (eight
    * bytes).
    */
  val EndMark: Byte = 0x40

  /** Shorter data is stored uncompressed: compression would not save anything. */
  val WorthCompressing = 128
}

/** Compresses and decompresses segments between heap and direct memory. Not thread-safe. */
private[sluice] final class Codec(codec: Byte, zstandardLevel: Int) {
  import Segments._

  private val compressor = LZ4Factory.fastestInstance().fastCompressor()
  private val decompressor = LZ4Factory.fastestInstance().safeDecompressor()
  private var staging: ByteBuffer = ByteBuffer.allocateDirect(0)

  /** The maximum number of bytes that [[write]] needs for `length` bytes. */
  def bound(length: Int): Int = HeadBytes + (codec match {
    case Lz4       => compressor.maxCompressedLength(length)
    case Zstandard => Zstd.compressBound(length.toLong).toInt
    case _         => length
  })

  /** Appends head and data to `out`, which has room for [[bound]]. */
  def write(source: Array[Byte], offset: Int, length: Int, out: ByteBuf, mark: Int = 0): Unit = {
    val at = out.writerIndex
    val dataAt = at + HeadBytes
    val packed = if (codec == Stored || length < WorthCompressing) length else compress(source, offset, length, out, dataAt)
    if (packed < length) {
      out.setByte(at, codec | mark).writerIndex(dataAt + packed)
    } else {
      out.setByte(at, Stored | mark).setBytes(dataAt, source, offset, length).writerIndex(dataAt + length)
    }
    out.setIntLE(at + 1, length)
  }

  private def compress(source: Array[Byte], offset: Int, length: Int, out: ByteBuf, at: Int): Int = {
    val room = out.capacity - at
    val target = out.internalNioBuffer(at, room)
    if (codec == Lz4) compressor.compress(ByteBuffer.wrap(source), offset, length, target, target.position(), room)
    else {
      val staged = stage(length)
      staged.put(source, offset, length)
      checked(Zstd.compressDirectByteBuffer(target, target.position(), room, staged, 0, length, zstandardLevel))
    }
  }

  /** Decompresses a segment into `target`, which has room for `rawLength` bytes. */
  def read(how: Int, data: ByteBuffer, target: Array[Byte], rawLength: Int): Unit = {
    val length = data.remaining()
    val unpacked = how match {
      case Stored =>
        if (length == rawLength) data.get(target, 0, rawLength)
        length
      case Lz4 =>
        try decompressor.decompress(data, data.position(), length, ByteBuffer.wrap(target), 0, rawLength)
        catch { case error: LZ4Exception => throw new IOException("a segment cannot be decompressed", error) }
      case Zstandard if data.hasArray =>
        checked(Zstd.decompressByteArray(target, 0, rawLength, data.array, data.arrayOffset + data.position(), length))
      case Zstandard =>
        val staged = stage(rawLength)
        val found = checked(Zstd.decompressDirectByteBuffer(staged, 0, rawLength, data, data.position(), length))
        if (found == rawLength) staged.get(target, 0, rawLength)
        found
      case other => throw new IOException(s"a segment has the unknown codec $other")
    }
    if (unpacked != rawLength) throw new IOException(s"a segment has $unpacked bytes instead of $rawLength")
  }

  /** A direct buffer of at least `length` bytes: zstd-jni needs both buffers in direct memory, or neither. */
  private def stage(length: Int): ByteBuffer = {
    if (staging.capacity < length) staging = ByteBuffer.allocateDirect(length)
    staging.clear()
  }

  private def checked(result: Long): Int = {
    if (Zstd.isError(result)) throw new IOException(s"Zstandard: ${Zstd.getErrorName(result)}")
    result.toInt
  }
}
