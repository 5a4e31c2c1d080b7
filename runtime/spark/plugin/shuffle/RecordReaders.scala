package org.apache.spark.shuffle.sluice

import java.io.{IOException, InputStream}
import java.nio.{ByteBuffer, ByteOrder}

import scala.collection.mutable

import org.apache.spark.SparkEnv
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.storage.ShuffleBlockId
import org.apache.spark.unsafe.Platform

/** Reads the rows of [[RowWriter]] in the order in which segments arrive. A row is valid until the next call. */
private[sluice] final class RowReader(segments: SegmentSource, fields: Int, codec: Codec) extends Iterator[(Any, Any)] {
  private val row = new UnsafeRow(fields)
  private val record: (Any, Any) = (0, row) // like SQL's own serializer: the key is not used
  private val incomplete = mutable.HashMap.empty[(Int, Long, Int), Pieces.Gathered]
  private var content = new Array[Byte](1 << 16)
  private var at = 0
  private var end = 0
  private var rowIsSet = false

  override def hasNext: Boolean = rowIsSet || advance()

  override def next(): (Any, Any) = {
    if (!rowIsSet && !advance()) throw new NoSuchElementException
    rowIsSet = false
    record
  }

  private def advance(): Boolean = {
    while (!rowIsSet && (at < end || load())) if (!rowIsSet && at < end) point() // a piece may not complete a row
    rowIsSet
  }

  private def point(): Unit = {
    val length = if (at + RowWriter.LengthBytes > end) -1 else Platform.getInt(content, Platform.BYTE_ARRAY_OFFSET + at.toLong)
    val from = at + RowWriter.LengthBytes
    if (length < 0 || from + length > end) throw new IOException("a row extends beyond the end of its segment")
    row.pointTo(content, Platform.BYTE_ARRAY_OFFSET + from.toLong, length)
    at = from + length
    rowIsSet = true
  }

  /** Loads the next segment; false after the last one. */
  private def load(): Boolean = segments.synchronized {
    val segment = segments.next()
    if (segment == null) {
      if (incomplete.nonEmpty) throw new IOException("pieces of a row are missing")
      false
    } else {
      if (content.length < segment.rawLength) content = new Array[Byte](segment.rawLength)
      codec.read(segment.codec & ~Segments.Piece, segment.data, content, segment.rawLength)
      if (segment.isPiece) gather(segment)
      else {
        at = 0
        end = segment.rawLength
      }
      true
    }
  }

  private def gather(segment: Segment): Unit = {
    val head = ByteBuffer.wrap(content, 0, segment.rawLength).order(ByteOrder.LITTLE_ENDIAN)
    val (piece, pieces, size) = (head.getInt(), head.getInt(), head.getInt())
    if (piece < 0 || piece >= pieces || pieces != Pieces.count(size)) throw new IOException("an invalid piece of a row")
    val key = (segment.partition, segment.map, segment.sequence - piece)
    val gathered = incomplete.getOrElseUpdate(key, new Pieces.Gathered(size, pieces))
    if (gathered.add(piece, content, segment.rawLength)) {
      incomplete -= key
      row.pointTo(gathered.row, size)
      rowIsSet = true
    }
  }
}

/** Reads the output of Spark's own writers as streams, one for each map and partition, in the order of segments. */
private[sluice] final class StreamReader(segments: SegmentReader, shuffleId: Int, codec: Codec) {
  private var current: Segment = _
  private var content = new Array[Byte](1 << 16)

  /** Skips the rest of the current stream and returns the next one; None after the last one. */
  def next(): Option[InputStream] = {
    if (stream != null) stream.skipRest()
    stream = null
    if (current == null) take()
    Option(current).map { first =>
      stream = new MapStream(first.partition, first.map)
      SparkEnv.get.serializerManager.wrapStream(ShuffleBlockId(shuffleId, first.map, first.partition), stream)
    }
  }

  private var stream: MapStream = _

  /** Loads the next segment of any stream. */
  private def take(): Unit = segments.synchronized {
    current = segments.next()
    if (current != null) {
      if (content.length < current.rawLength) content = new Array[Byte](current.rawLength)
      codec.read(current.codec, current.data, content, current.rawLength)
    }
  }

  private final class MapStream(partition: Int, map: Long) extends InputStream {
    private var at = 0
    private var isOver = false

    private def ready(): Boolean = {
      while (!isOver && at == current.rawLength) {
        take()
        at = 0
        isOver = current == null || current.map != map || current.partition != partition
      }
      !isOver
    }

    override def read(): Int =
      if (ready()) {
        at += 1
        content(at - 1) & 0xff
      } else -1

    override def read(target: Array[Byte], offset: Int, length: Int): Int =
      if (length == 0) 0
      else if (!ready()) -1
      else {
        val taken = math.min(length, current.rawLength - at)
        System.arraycopy(content, at, target, offset, taken)
        at += taken
        taken
      }

    override def available(): Int = if (isOver) 0 else current.rawLength - at

    def skipRest(): Unit = while (ready()) at = current.rawLength
  }
}
