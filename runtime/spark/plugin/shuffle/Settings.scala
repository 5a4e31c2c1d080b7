package org.apache.spark.shuffle.sluice

import org.apache.spark.SparkConf
import org.apache.spark.internal.config

/** The settings that the plugin reads. The launcher sets its own ones (`runtime/spark/jvm/conf.py`). */
private[sluice] final class Settings(conf: SparkConf) {
  import Settings._

  /** Size of a partition's row buffer. A full buffer is compressed and pushed. */
  val bufferBytes: Int = conf.getSizeAsBytes(Buffer, DefaultBuffer).toInt

  /** A frame is sent when it has this many bytes. */
  val frameBytes: Int = conf.getSizeAsBytes(FrameSize, DefaultFrame).toInt

  /** Maximum bytes in flight to one reduce task. */
  val inFlightBytes: Long = conf.get(config.REDUCER_MAX_SIZE_IN_FLIGHT) << 20

  private val zstandardLevel = conf.get(config.IO_COMPRESSION_ZSTD_LEVEL)

  /** The codec for rows. The output of Spark's own writers is already compressed. */
  def rowCodec(): Codec = new Codec(
    if (!conf.get(config.SHUFFLE_COMPRESS)) Segments.Stored
    else if (conf.get(config.IO_COMPRESSION_CODEC).toLowerCase(java.util.Locale.ROOT).startsWith("zst")) Segments.Zstandard
    else Segments.Lz4,
    zstandardLevel)
}

private[spark] object Settings {
  /** Whether segments are sealed. Set by the launcher. */
  val Seal = "spark.sluice.shuffle.seal"
  val Timeout = "spark.sluice.shuffle.timeout"
  val DefaultTimeout = "60s"
  val Buffer = "spark.sluice.shuffle.buffer"
  val DefaultBuffer = "64k"
  val FrameSize = "spark.sluice.shuffle.frame"
  val DefaultFrame = "1m"
}
