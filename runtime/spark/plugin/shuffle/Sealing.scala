package org.apache.spark.shuffle.sluice

import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets.UTF_8
import java.security.{GeneralSecurityException, SecureRandom}
import javax.crypto.{Cipher, Mac}
import javax.crypto.spec.{GCMParameterSpec, SecretKeySpec}

import io.netty.buffer.ByteBuf

import org.apache.spark.{SparkEnv, SparkException}

/** The format of sealed segments: the workers that store them can neither read nor change them (ADR 119).
  *
  * A sealed segment is a head, the segment encrypted with AES-256-GCM, and the tag. The head consists of the format
  * version (one byte); a count (four bytes, little endian), which is 0 except in the last segment of a map and
  * partition, where it is the number of their segments; and a random salt (eight bytes). The nonce is the salt and the
  * sequence number. The head and the segment's place (shuffle, partition, map, sequence number, job) are authenticated
  * as additional data. `runtime/shuffle/data_plane/sealing.py` implements the same format.
  */
private[sluice] object Sealing {
  val Version: Byte = 0x41
  val SaltBytes = 8
  val HeadBytes: Int = 1 + 4 + SaltBytes
  val TagBytes = 16
  val OverheadBytes: Int = HeadBytes + TagBytes

  val Transformation = "AES/GCM/NoPadding"
}

/** Derives the keys of a job's maps from the secret that its driver and executors share. Thread-safe.
  *
  * Uses HKDF with SHA-256: the label is the salt; shuffle, map and job are the info.
  */
private[sluice] final class SealKeys(secret: Array[Byte], job: String) {
  import SealKeys._

  private val root = mac(Label).doFinal(secret)
  private val name = job.getBytes(UTF_8)

  /** The key of one map attempt. `map` is its unique id: other attempts of the same map have other ids. */
  def of(shuffle: Int, map: Long): SecretKeySpec = {
    val info = ByteBuffer.allocate(12 + name.length + 1).order(ByteOrder.LITTLE_ENDIAN)
    info.putInt(shuffle).putLong(map).put(name).put(1.toByte)
    new SecretKeySpec(mac(root).doFinal(info.array()), "AES")
  }

  /** A template of the additional authenticated data. [[SealKeys.place]] fills in the fields that vary. */
  def placeOf(shuffle: Int): ByteBuffer = {
    val bytes = ByteBuffer.allocate(Sealing.HeadBytes + 20 + name.length).order(ByteOrder.LITTLE_ENDIAN)
    bytes.putInt(Sealing.HeadBytes, shuffle)
    bytes.position(Sealing.HeadBytes + 20)
    bytes.put(name)
    bytes
  }

  private def mac(key: Array[Byte]): Mac = {
    val made = Mac.getInstance("HmacSHA256")
    made.init(new SecretKeySpec(key, "HmacSHA256"))
    made
  }
}

private[sluice] object SealKeys {
  private val Label = "sluice sealed shuffle 1".getBytes(UTF_8)
  @volatile private var ours: (String, SealKeys) = _

  /** The keys of this process's job. */
  def get: SealKeys = {
    val env = SparkEnv.get
    val secret = if (env.securityManager.isAuthenticationEnabled()) env.securityManager.getSecretKey() else null
    if (secret == null || secret.isEmpty) throw new SparkException("a shuffle cannot be sealed without the job's secret")
    val known = ours
    if (known != null && known._1 == secret) known._2
    else {
      val made = new SealKeys(secret.getBytes(UTF_8), env.conf.get("spark.master").stripPrefix("sluice://"))
      ours = (secret, made)
      made
    }
  }

  /** Completes the additional authenticated data of one segment. */
  private[sluice] def place(bytes: ByteBuffer, partition: Int, map: Long, sequence: Int): Array[Byte] = {
    val at = Sealing.HeadBytes + 4
    bytes.putInt(at, partition).putLong(at + 4, map).putInt(at + 12, sequence)
    bytes.array()
  }
}

/** Seals the segments of one map attempt. Not thread-safe. */
private[sluice] final class MapSealer(keys: SealKeys, shuffle: Int, map: Long) {
  import Sealing._

  private val key = keys.of(shuffle, map)
  private val cipher = Cipher.getInstance(Transformation)
  private val place = keys.placeOf(shuffle)
  private val salt = new Array[Byte](SaltBytes)
  MapSealer.random.nextBytes(salt)
  private val nonce = ByteBuffer.allocate(SaltBytes + 4).order(ByteOrder.LITTLE_ENDIAN).put(salt)
  private var work = new Array[Byte](0)
  private var sequences = 0
  /** The number of segments of each partition; negative if the last one has been sealed. */
  private var counts = new Array[Int](0)

  /** Seals the bytes of `out` that follow the room for a head at `from`, up to the end. */
  def seal(out: ByteBuf, from: Int, partition: Int, sequence: Int, last: Boolean): Unit = {
    if (sequence != sequences) throw new IllegalStateException(s"segment $sequence of map $map after ${sequences - 1}")
    sequences = Math.incrementExact(sequences) // no nonce is used twice
    val count = counted(partition, last)
    val length = out.writerIndex - from - HeadBytes
    if (work.length < length + TagBytes) work = new Array[Byte](length + TagBytes)
    out.getBytes(from + HeadBytes, work, 0, length)
    out.setByte(from, Version).setIntLE(from + 1, if (last) count else 0).setBytes(from + 5, salt)
    out.getBytes(from, place.array(), 0, HeadBytes)
    nonce.putInt(SaltBytes, sequence)
    cipher.init(Cipher.ENCRYPT_MODE, key, new GCMParameterSpec(TagBytes * 8, nonce.array()))
    cipher.updateAAD(SealKeys.place(place, partition, map, sequence))
    cipher.doFinal(work, 0, length, work, 0)
    out.writerIndex(from + HeadBytes).writeBytes(work, 0, length + TagBytes)
  }

  private def counted(partition: Int, last: Boolean): Int = {
    if (partition >= counts.length) counts = java.util.Arrays.copyOf(counts, math.max(partition + 1, counts.length * 2))
    if (counts(partition) < 0) throw new IllegalStateException(s"partition $partition of map $map is complete")
    val count = counts(partition) + 1
    counts(partition) = if (last) -count else count
    count
  }

  /** The partitions that have segments, but no last segment yet. */
  def unfinished: Array[Int] = counts.indices.filter(counts(_) > 0).toArray
}

private[sluice] object MapSealer {
  private val random = new SecureRandom
}

/** Opens the sealed segments of one shuffle. Not thread-safe. */
private[sluice] final class SegmentOpener(keys: SealKeys, shuffle: Int) {
  import Sealing._

  private val cipher = Cipher.getInstance(Transformation)
  private val place = keys.placeOf(shuffle)
  private val nonce = new Array[Byte](SaltBytes + 4)
  private var sealedBytes = new Array[Byte](0)
  private var opened = new Array[Byte](0)
  private var keyOf = 0L
  private var key: SecretKeySpec = _

  /** The count in the head of the segment opened last: 0, or the number of segments of its map and partition. */
  var lastCount: Int = 0

  /** Returns the bytes of a segment, valid until the next call.
    *
    * Throws [[WorkerFailure]] if the segment was not sealed by this job for this place.
    */
  def open(partition: Int, map: Long, sequence: Int, payload: ByteBuf, at: Int, length: Int): ByteBuffer = {
    if (length < OverheadBytes || payload.getByte(at) != Version) throw refused(partition, map, sequence, null)
    if (key == null || keyOf != map) {
      key = keys.of(shuffle, map)
      keyOf = map
    }
    val body = length - HeadBytes
    if (sealedBytes.length < body) {
      sealedBytes = new Array[Byte](body)
      opened = new Array[Byte](body)
    }
    payload.getBytes(at, place.array(), 0, HeadBytes)
    payload.getBytes(at + HeadBytes, sealedBytes, 0, body)
    System.arraycopy(place.array(), HeadBytes - SaltBytes, nonce, 0, SaltBytes)
    ByteBuffer.wrap(nonce).order(ByteOrder.LITTLE_ENDIAN).putInt(SaltBytes, sequence)
    try {
      cipher.init(Cipher.DECRYPT_MODE, key, new GCMParameterSpec(TagBytes * 8, nonce))
      cipher.updateAAD(SealKeys.place(place, partition, map, sequence))
      cipher.doFinal(sealedBytes, 0, body, opened, 0)
    } catch { case error: GeneralSecurityException => throw refused(partition, map, sequence, error) }
    lastCount = place.getInt(1)
    ByteBuffer.wrap(opened, 0, body - TagBytes)
  }

  private def refused(partition: Int, map: Long, sequence: Int, cause: Throwable): WorkerFailure =
    new WorkerFailure(s"partition $partition of map $map was not sealed like this (segment $sequence)", cause)
}

/** Parses the content of a segment after it has been opened, or of an unsealed one. */
private[sluice] object SegmentContent {
  /** Parses head and data of a segment; throws [[WorkerFailure]] if a length is invalid. */
  def of(partition: Int, map: Long, sequence: Int, content: java.nio.ByteBuffer): Segment = {
    val from = content.position()
    if (content.remaining() < Segments.HeadBytes) throw new WorkerFailure(s"a segment of ${content.remaining()} bytes")
    val rawLength = content.duplicate().order(java.nio.ByteOrder.LITTLE_ENDIAN).getInt(from + 1)
    if (rawLength < 0 || rawLength > SegmentReader.MaxRawBytes) throw new WorkerFailure(s"a segment of $rawLength bytes")
    content.position(from + Segments.HeadBytes)
    new Segment(partition, map, sequence, content.get(from) & 0xff, rawLength, content)
  }
}

/** Checks that a reader receives all blocks that the driver knows of, with the segment counts that writers have sealed.
  *
  * Counts the segments of the partition that is being read, from zero in each worker's response. Not thread-safe.
  */
private[sluice] final class SealedBlocks(blocks: Array[java.util.BitSet], first: Int, maps: Array[Long], ordered: Boolean) {
  private val received = new Array[Int](maps.length)
  private val expected = new Array[Int](maps.length)
  private var complete = 0
  private var greatest = -1L
  private var greatestNew = -1L

  /** Restarts the count, because another worker's response begins with the current partition again. */
  def recount(): Unit = {
    java.util.Arrays.fill(received, 0)
    java.util.Arrays.fill(expected, 0)
    complete = 0
    greatest = -1L
  }

  /** Counts a segment that is new in this response. `isNew`: it was in no earlier response either. */
  def add(partition: Int, map: Int, sequence: Int, lastCount: Int, isNew: Boolean): Unit = {
    if (!blocks(partition - first).get(map)) {
      throw new WorkerFailure(s"partition $partition of map ${maps(map)} is empty, and a segment came")
    }
    if (lastCount < 0 || (lastCount > 0 && expected(map) > 0)) throw wrong(partition, map)
    if (lastCount > 0) expected(map) = lastCount
    received(map) += 1
    if (expected(map) > 0 && received(map) > expected(map)) throw wrong(partition, map)
    if (received(map) == expected(map)) complete += 1
    if (ordered) {
      val place = map.toLong << 32 | Integer.toUnsignedLong(sequence)
      def text = s"partition $partition of map ${maps(map)} came out of order (segment $sequence)"
      if (isNew && place < greatestNew) throw new OutOfOrder(text)
      if (place < greatest) throw new WorkerFailure(text)
      if (isNew) greatestNew = place
      greatest = place
    }
  }

  /** Checks that the partitions from `from` to `end` (exclusive) are complete. Only `from` has been read. */
  def finish(from: Int, end: Int): Unit = {
    if (from < end && complete < blocks(from - first).cardinality()) {
      val incomplete = blocks(from - first).stream().filter(each => expected(each) == 0 || received(each) < expected(each))
      val map = incomplete.findFirst().getAsInt
      throw new WorkerFailure(s"segments of partition $from of map ${maps(map)} are missing")
    }
    var partition = from + 1
    while (partition < end) {
      if (!blocks(partition - first).isEmpty) {
        val map = blocks(partition - first).nextSetBit(0)
        throw new WorkerFailure(s"partition $partition of map ${maps(map)} is missing")
      }
      partition += 1
    }
    recount()
    greatestNew = -1L
  }

  private def wrong(partition: Int, map: Int): WorkerFailure =
    new WorkerFailure(s"partition $partition of map ${maps(map)} has more segments than it was sealed with")
}

private[sluice] object SealedBlocks {
  /** For each partition, which of the sorted `maps` have data in it. `blocks` has the map ids by partition. */
  def index(blocks: Array[Array[Long]], maps: Array[Long]): Array[java.util.BitSet] = blocks.map { of =>
    val found = new java.util.BitSet(maps.length)
    of.foreach { map =>
      val at = java.util.Arrays.binarySearch(maps, map)
      if (at >= 0) found.set(at)
    }
    found
  }
}

/** Data arrived in an order other than it was written. Another worker cannot correct that: rows were already read. */
private[sluice] final class OutOfOrder(text: String) extends java.io.IOException(text)
