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

/** Spark's event log, told to the driver agent line by line, from which Spark's UI is shown after the job's end.
  *
  * The agent (`runtime/spark/driver/event_log.py`) masks, compresses, bounds and stores it where the job cannot write. If it
  * takes no more, or is slow, the job goes on: this listener is alone in Spark's queue for event logs, which drops
  * events when it is full.
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
        logInfo(s"the event log ends here, the job goes on: ${error.getMessage}")
        close()
      case NonFatal(error) => logWarning("an event is not in the event log", error) // a listener must not be removed for it
    }
  }

  /** Local properties of threads have Spark settings in them. */
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

  /** Begin it if the driver agent takes it; before the listeners of `sc` are told anything. */
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
            logWarning("there is no event log of this SparkContext", error)
            None
        }
      }

  /** Whether Spark itself would log it; those of libraries say so themselves. */
  private def isKept(event: SparkListenerEvent): Boolean = event.logEvent
}
