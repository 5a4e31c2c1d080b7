package org.apache.spark.shuffle.sluice

import org.apache.spark.SparkConf
import org.apache.spark.internal.config

/** The settings of Spark's streaming shuffles that apply to pipelined shuffles. */
private[sluice] final class PipelinedSettings(conf: SparkConf) {
  import PipelinedSettings._

  val segments = new Settings(conf)

  /** Minimum time between two commits of a map task, in nanoseconds. A row that arrives later is sent at once. */
  val flushNanos: Long =
    math.max(1L, conf.getTimeAsMs(config.STREAMING_SHUFFLE_NETWORK_BUFFER_MAX_WAIT_TIME_MS.key, DefaultFlush)) * 1000000L

  /** This many bytes of rows are sent even before [[flushNanos]] have passed. */
  val flushBytes: Int = segments.frameBytes

  /** Maximum bytes of buffered rows. A map task with more waits. */
  val bufferBytes: Int = flushBytes * 2

  /** Maximum bytes that a map task has committed and its readers have not read. */
  val unreadBytes: Long = conf.get(config.STREAMING_SHUFFLE_WRITER_MAX_MEMORY).toLong

  /** Maximum bytes in flight to one reduce task. */
  val inFlightBytes: Long = conf.get(config.STREAMING_SHUFFLE_READER_MAX_MEMORY).toLong
}

private object PipelinedSettings {
  private val DefaultFlush = "10ms"
}
