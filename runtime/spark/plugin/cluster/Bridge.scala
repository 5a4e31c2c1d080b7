package org.apache.spark.scheduler.cluster.sluice

import java.io.{ByteArrayOutputStream, EOFException, IOException}
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.ByteBuffer
import java.nio.channels.SocketChannel
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.{CompletableFuture, ConcurrentHashMap, CountDownLatch, LinkedBlockingQueue, TimeUnit}
import java.util.concurrent.atomic.AtomicLong

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.internal.Logging

/** The connection to the driver agent: one JSON object per line over a Unix socket (`runtime/spark/driver/bridge.py`).
  *
  * Messages leave in the order in which they were sent, so a kill never overtakes the lower total that goes with it.
  * Spark's threads never wait for the agent.
  */
private[sluice] final class Bridge(received: JsonNode => Unit, lost: Throwable => Unit) extends Logging {
  import Bridge._

  private val channel = SocketChannel.open(StandardProtocolFamily.UNIX)
  private val outgoing = new LinkedBlockingQueue[Option[ObjectNode]](MaxQueued)
  private val drained = new CountDownLatch(1)
  private val unanswered = new ConcurrentHashMap[Long, CompletableFuture[JsonNode]]()
  private val questions = new AtomicLong()
  @volatile private var closing = false

  def start(): Unit = {
    val path = Option(System.getenv("SLUICE_BRIDGE")).getOrElse(throw new IOException("SLUICE_BRIDGE is not set"))
    channel.connect(UnixDomainSocketAddress.of(path))
    daemon("sluice-bridge-writer")(write())
    daemon("sluice-bridge-reader")(read())
  }

  def message(kind: String): ObjectNode = Json.createObjectNode().put("type", kind)

  def send(message: ObjectNode): Unit =
    if (!outgoing.offer(Some(message))) fail(new IOException(s"the driver agent is $MaxQueued messages behind"))

  /** Sends a request. The response has the same `id`. The future fails when the bridge fails. */
  def request(message: ObjectNode): CompletableFuture[JsonNode] = {
    val id = questions.incrementAndGet()
    val answer = new CompletableFuture[JsonNode]()
    unanswered.put(id, answer)
    answer.whenComplete((_, _) => unanswered.remove(id))
    send(message.put("id", id))
    if (closing) answer.completeExceptionally(new IOException("the bridge is closed"))
    answer
  }

  /** Sends a message that a later one supersedes. The message is dropped while older messages are still queued. */
  def sendIfIdle(message: ObjectNode): Unit = if (outgoing.isEmpty) send(message)

  /** Sends the queued messages, then closes the connection. */
  def close(): Unit = {
    closing = true
    outgoing.offer(None)
    drained.await(CloseSeconds, TimeUnit.SECONDS)
    channel.close()
    failUnanswered(new IOException("the bridge is closed"))
  }

  private def write(): Unit =
    try {
      Iterator.continually(outgoing.take()).takeWhile(_.isDefined).flatten.foreach { message =>
        val line = ByteBuffer.wrap((Json.writeValueAsString(message) + "\n").getBytes(UTF_8))
        while (line.hasRemaining) channel.write(line)
      }
    } catch {
      case error: IOException => fail(error)
    } finally drained.countDown()

  private def read(): Unit =
    try {
      val buffer = ByteBuffer.allocate(ReadBytes)
      val line = new ByteArrayOutputStream()
      while (channel.read(buffer) >= 0) {
        buffer.flip()
        while (buffer.hasRemaining) {
          val byte = buffer.get()
          if (byte == '\n') {
            handle(line.toByteArray)
            line.reset()
          } else if (line.size == MaxLineBytes) throw new IOException(s"a line is longer than $MaxLineBytes bytes")
          else line.write(byte)
        }
        buffer.clear()
      }
      throw new EOFException("the driver agent closed the bridge")
    } catch {
      case error: IOException => fail(error)
    }

  private def handle(line: Array[Byte]): Unit = {
    val message = Json.readTree(line) // throws JsonProcessingException, which is an IOException
    try Option(unanswered.get(message.path("id").asLong(0))) match {
      case Some(answer) => answer.complete(message)
      case None         => received(message)
    } catch { case NonFatal(error) => logWarning(s"cannot handle message ${message.path("type").asText()}", error) }
  }

  private def fail(error: IOException): Unit = {
    failUnanswered(error)
    if (!closing) lost(error)
  }

  private def failUnanswered(error: IOException): Unit = unanswered.values().forEach(_.completeExceptionally(error))

  private def daemon(name: String)(body: => Unit): Unit = {
    val thread = new Thread(() => body, name)
    thread.setDaemon(true)
    thread.start()
  }
}

private[sluice] object Bridge {
  val Json = new ObjectMapper()

  private val MaxQueued = 10000
  private val MaxLineBytes = 1 << 20 // MAX_LINE_BYTES in runtime/spark/driver/bridge.py
  private val ReadBytes = 8192
  private val CloseSeconds = 5L
}
