package org.apache.spark.scheduler.cluster.sluice

import java.io.{BufferedOutputStream, IOException, OutputStream}
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.channels.{Channels, SocketChannel}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path}
import java.util.Properties

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.{SPARK_VERSION, SparkConf, SparkContext, SparkFirehoseListener}
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler._
import org.apache.spark.util.{JsonProtocol, Utils}

/** Sends Spark's event log to the driver agent line by line. Spark's UI of an ended job is rendered from this log.
  *
  * The agent (`runtime/spark/driver/event_log.py`) masks secrets, compresses the log, limits its size and stores it
  * where the job cannot write. The job continues if the agent is slow or stops reading: this listener is the only one
  * in Spark's event log queue, which drops events when it is full.
  */
private[sluice] final class EventLog(conf: SparkConf, channel: SocketChannel) extends SparkFirehoseListener with Logging {
  import EventLog._

  private val out: OutputStream = new BufferedOutputStream(Channels.newOutputStream(channel), BufferBytes)
  private var open = true
  private var flushedAt = System.nanoTime()

  write(SparkListenerLogStart(SPARK_VERSION), flush = true)

  override def onEvent(event: SparkListenerEvent): Unit = event match {
    case _: SparkListenerExecutorMetricsUpdate | _: SparkListenerBlockUpdated | _: SparkListenerUnpersistRDD => ()
    case each: SparkListenerEnvironmentUpdate => write(EventLoggingListener.redactEvent(conf, each))
    case each: SparkListenerJobStart          => write(each.copy(properties = redacted(each.properties)), flush = true)
    case each: SparkListenerStageSubmitted    => write(each.copy(properties = redacted(each.properties)))
    case each: SparkListenerJobEnd            => write(each, flush = true)
    case each: SparkListenerApplicationEnd    => write(each, flush = true)
    case each if isKept(each)                 => write(each)
    case _                                    => ()
  }

  def close(): Unit = synchronized {
    if (open) {
      open = false
      try out.close()
      catch { case _: IOException => () }
      channel.close()
    }
  }

  private def write(event: SparkListenerEvent, flush: Boolean = false): Unit = synchronized {
    if (open) try {
      val line = JsonProtocol.sparkEventToJsonString(event).getBytes(UTF_8)
      if (line.length < MaxLineBytes) {
        out.write(line)
        out.write('\n')
      }
      val now = System.nanoTime()
      if (flush || now - flushedAt > FlushNanos) {
        out.flush()
        flushedAt = now
      }
    } catch {
      case error: IOException =>
        logInfo(s"cannot write to the event log, the job continues without it: ${error.getMessage}")
        close()
      case NonFatal(error) => logWarning("cannot add an event to the event log", error) // keep the listener registered
    }
  }

  /** The local properties of a thread contain Spark settings, which may be secret. */
  private def redacted(properties: Properties): Properties =
    if (properties == null) null
    else {
      val shown = new Properties
      Utils.redact(conf, properties.asScala.toSeq).foreach { case (key, value) => shown.setProperty(key, value) }
      shown
    }
}

private[sluice] object EventLog extends Logging {
  private val BufferBytes = 64 << 10
  private val MaxLineBytes = 4 << 20 // MAX_LINE_BYTES in runtime/spark/driver/event_log.py
  private val FlushNanos = 1000000000L

  /** Starts the event log if the driver agent accepts one. Call this before the listeners of `sc` receive any event. */
  def begin(sc: SparkContext): Option[EventLog] =
    Option(System.getenv("SLUICE_BRIDGE"))
      .map(Path.of(_).resolveSibling("events")) // SOCKET_NAME in runtime/spark/driver/event_log.py
      .filter(Files.exists(_))
      .flatMap { path =>
        try {
          val channel = SocketChannel.open(StandardProtocolFamily.UNIX)
          channel.connect(UnixDomainSocketAddress.of(path))
          val log = new EventLog(sc.conf, channel)
          sc.listenerBus.addToEventLogQueue(log)
          Some(log)
        } catch {
          case error: IOException =>
            logWarning("cannot open the event log, this SparkContext runs without one", error)
            None
        }
      }

  /** Whether Spark itself would log the event. Events that libraries define decide this themselves. */
  private def isKept(event: SparkListenerEvent): Boolean = event.logEvent
}
