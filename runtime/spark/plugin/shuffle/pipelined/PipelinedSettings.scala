package org.apache.spark.shuffle.sluice

import org.apache.spark.SparkConf
import org.apache.spark.internal.config

/** Spark's settings of streaming shuffles, as far as they mean something here. */
private[sluice] final class PipelinedSettings(conf: SparkConf) {
  import PipelinedSettings._

  val segments = new Settings(conf)

  /** Least time between two commits of one map task, in nanoseconds; a row that comes later is sent at once. */
  val flushNanos: Long =
    math.max(1L, conf.getTimeAsMs(config.STREAMING_SHUFFLE_NETWORK_BUFFER_MAX_WAIT_TIME_MS.key, DefaultFlush)) * 1000000L

  /** So many bytes of rows are sent although that time is not over. */
  val flushBytes: Int = segments.frameBytes

  /** Rows that wait to be sent; a map task that has more waits. */
  val bufferBytes: Int = flushBytes * 2

  /** Most bytes that a map task may have committed and its readers not read. */
  val unreadBytes: Long = conf.get(config.STREAMING_SHUFFLE_WRITER_MAX_MEMORY).toLong

  /** Most bytes on their way to one reduce task. */
  val inFlightBytes: Long = conf.get(config.STREAMING_SHUFFLE_READER_MAX_MEMORY).toLong
}

private object PipelinedSettings {
  private val DefaultFlush = "10ms"
}
