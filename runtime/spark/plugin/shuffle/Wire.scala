package org.apache.spark.shuffle.sluice

import java.nio.charset.StandardCharsets.UTF_8

import io.netty.buffer.{ByteBuf, ByteBufAllocator, Unpooled}

/** Frames of the data plane (`runtime/shuffle/data_plane/frames.py`): a 48-byte little-endian header and a payload. */
private[sluice] object Wire {
  val Magic = 0x31434c53
  val HeaderBytes = 48

  /** One row of the table in a PUSH payload: partition, sequence, length, check. */
  val PushEntryBytes = 16

  /** One row of the table in a DATA payload: partition, sequence, map, length, check. */
  val DataEntryBytes = 24

  val MaxSegmentBytes: Int = 4 << 20
  val MaxDataBytes: Int = (8 << 20) + (64 << 10)
  val MaxAnswerBytes: Int = 64 << 10

  /** Maximum number of map ids in one FETCH: at most 8 MiB of payload. */
  val MaxMapsPerFetch: Int = 1 << 20

  object Kind {
    val Hello = 1
    val Push = 2
    val Commit = 3
    val Abort = 4
    val Fetch = 5
    val Credit = 6
    val Cancel = 7
    val Produce = 8
    val Follow = 9
    val HelloOk = 17
    val PushOk = 18
    val CommitOk = 19
    val ProduceOk = 20
    val Data = 21
    val End = 22
    val Maps = 23
    val MapsSent = 24
    val Error = 31
  }

  /** The ERROR codes that clients distinguish. */
  object Code {
    val Draining = 5
    val Protocol = 6
    val NotAllowed = 7
  }

  val OrderedFetch = 1

  // Offsets of the header's fields.
  val MagicAt = 0
  val KindAt = 4
  val FlagsAt = 5
  val ShuffleAt = 8
  val PartitionAt = 12
  val MapAt = 16
  val RequestAt = 24
  val LengthAt = 28
  val CountAt = 32
  val AuxAt = 36
  val ExtraAt = 40

  def putHeader(
      buffer: ByteBuf, at: Int, kind: Int, flags: Int = 0, shuffle: Int = 0, partition: Int = 0, map: Long = 0L,
      request: Int = 0, length: Int = 0, count: Int = 0, aux: Int = 0, extra: Long = 0L): Unit = {
    buffer.setIntLE(at + MagicAt, Magic)
    buffer.setByte(at + KindAt, kind)
    buffer.setByte(at + FlagsAt, flags)
    buffer.setShortLE(at + 6, 0)
    buffer.setIntLE(at + ShuffleAt, shuffle)
    buffer.setIntLE(at + PartitionAt, partition)
    buffer.setLongLE(at + MapAt, map)
    buffer.setIntLE(at + RequestAt, request)
    buffer.setIntLE(at + LengthAt, length)
    buffer.setIntLE(at + CountAt, count)
    buffer.setIntLE(at + AuxAt, aux)
    buffer.setLongLE(at + ExtraAt, extra)
  }

  /** A frame without a payload. */
  def bare(
      allocator: ByteBufAllocator, kind: Int, shuffle: Int = 0, partition: Int = 0, map: Long = 0L, request: Int = 0,
      count: Int = 0, aux: Int = 0, extra: Long = 0L): ByteBuf = {
    val frame = allocator.directBuffer(HeaderBytes)
    putHeader(
      frame, 0, kind, shuffle = shuffle, partition = partition, map = map, request = request, count = count, aux = aux,
      extra = extra)
    frame.writerIndex(HeaderBytes)
  }

  /** The first frame of a connection; its payload is the map {"version": 1, "direction": direction} in MessagePack. */
  def hello(direction: String): ByteBuf = {
    val payload = Unpooled.buffer()
    def text(value: String): Unit = {
      payload.writeByte(0xa0 | value.length)
      payload.writeBytes(value.getBytes(UTF_8))
    }
    payload.writeByte(0x82)
    text("version")
    payload.writeByte(1)
    text("direction")
    text(direction)
    val frame = Unpooled.buffer(HeaderBytes + payload.readableBytes())
    putHeader(frame, 0, Kind.Hello, length = payload.readableBytes())
    frame.writerIndex(HeaderBytes).writeBytes(payload)
  }
}

/** A received frame. Its owner must call [[release]]. */
private[sluice] final class Frame(header: ByteBuf, val payload: ByteBuf) {
  import Wire._

  val kind: Int = header.getUnsignedByte(KindAt)
  val shuffle: Int = header.getIntLE(ShuffleAt)
  val partition: Int = header.getIntLE(PartitionAt)
  val map: Long = header.getLongLE(MapAt)
  val request: Int = header.getIntLE(RequestAt)
  val count: Int = header.getIntLE(CountAt)
  val aux: Int = header.getIntLE(AuxAt)
  val extra: Long = header.getLongLE(ExtraAt)

  /** The message of an ERROR frame. */
  def text: String = payload.toString(UTF_8)

  def release(): Unit = payload.release()
}
