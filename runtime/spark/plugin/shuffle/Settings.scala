package org.apache.spark.shuffle.sluice

import org.apache.spark.SparkConf
import org.apache.spark.internal.config

/** The settings that the plugin reads; those of our own are the launcher's (`runtime/spark/jvm/conf.py`). */
private[sluice] final class Settings(conf: SparkConf) {
  import Settings._

  /** Rows of one partition are compressed when so many bytes of them are there. */
  val bufferBytes: Int = conf.getSizeAsBytes(Buffer, DefaultBuffer).toInt

  /** A frame is sent when it holds so many bytes. */
  val frameBytes: Int = conf.getSizeAsBytes(FrameSize, DefaultFrame).toInt

  /** Most bytes on their way to one reduce task. */
  val inFlightBytes: Long = conf.get(config.REDUCER_MAX_SIZE_IN_FLIGHT) << 20

  private val zstandardLevel = conf.get(config.IO_COMPRESSION_ZSTD_LEVEL)

  /** The codec of rows; what Spark's own writers give us is compressed already. */
  def rowCodec(): Codec = new Codec(
    if (!conf.get(config.SHUFFLE_COMPRESS)) Segments.Stored
    else if (conf.get(config.IO_COMPRESSION_CODEC).toLowerCase(java.util.Locale.ROOT).startsWith("zst")) Segments.Zstandard
    else Segments.Lz4,
    zstandardLevel)
}

private[spark] object Settings {
  /** Whether segments are sealed; the launcher says so. */
  val Seal = "spark.sluice.shuffle.seal"
  val Timeout = "spark.sluice.shuffle.timeout"
  val DefaultTimeout = "60s"
  val Buffer = "spark.sluice.shuffle.buffer"
  val DefaultBuffer = "64k"
  val FrameSize = "spark.sluice.shuffle.frame"
  val DefaultFrame = "1m"
}
