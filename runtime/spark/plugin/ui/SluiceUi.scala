package org.apache.spark.ui

import java.io.{ByteArrayOutputStream, IOException}
import java.net.{StandardProtocolFamily, UnixDomainSocketAddress}
import java.nio.ByteBuffer
import java.nio.channels.{Channels, ServerSocketChannel, SocketChannel}
import java.nio.charset.StandardCharsets.ISO_8859_1
import java.nio.file.{Files, Path}
import java.util.concurrent.{SynchronousQueue, ThreadPoolExecutor, TimeUnit}

import scala.util.control.NonFatal

import org.sparkproject.jetty.server.{HttpConfiguration, HttpConnectionFactory, LocalConnector, Server}
import org.sparkproject.jetty.server.handler.{ContextHandlerCollection, ErrorHandler}
import org.sparkproject.jetty.util.thread.QueuedThreadPool

import org.apache.spark.SparkConf

/** Serves Spark's UI over a private Unix socket instead of a TCP port.
  *
  * `io.sluice.tls.Guard` redirects every call of `JettyUtils.startJettyServer` to this object. The client is the driver
  * agent (`runtime/spark/driver/ui_client.py`), which sends requests for the JobMaster. The socket is next to the
  * bridge's socket, in a directory that only this user can access.
  */
object SluiceUi {
  private val Threads = 4
  private val IdleSeconds = 30L
  private val AnswerSeconds = 10L
  private val MaxRequestBytes = 8 << 10
  private val MaxAnswerBytes = 3 << 20 // MAX_ANSWER_BYTES in runtime/spark/driver/ui_client.py
  private val Unavailable = "HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".getBytes(ISO_8859_1)
  private val TooLarge = "HTTP/1.0 507 Insufficient Storage\r\nContent-Length: 0\r\n\r\n".getBytes(ISO_8859_1)

  @volatile private var current: Option[LocalConnector] = None
  private lazy val listening: ServerSocketChannel = open()

  /** Starts a server whose only connector is in memory, and returns its `ServerInfo`.
    *
    * The type is `AnyRef` because the compiler cannot resolve `ServerInfo`: Spark's jars relocate the Jetty classes in
    * its signature.
    */
  def start(conf: SparkConf, name: String): AnyRef = {
    val made = inMemory(conf, name)
    listen()
    made
  }

  /** Starts to accept requests on the socket. Idempotent. */
  private[ui] def listen(): Unit = listening

  /** Starts the server without the socket. */
  private[ui] def inMemory(conf: SparkConf, name: String): AnyRef = {
    val pool = new QueuedThreadPool(2 * Threads)
    pool.setName(if (name.isEmpty) "sluice-ui" else name)
    pool.setDaemon(true)
    val server = new Server(pool)
    val errors = new ErrorHandler()
    errors.setShowStacks(false)
    server.setErrorHandler(errors)
    val pages = new ContextHandlerCollection
    server.setHandler(pages)
    val http = new HttpConfiguration
    http.setSendServerVersion(false)
    http.setRequestHeaderSize(MaxRequestBytes)
    val connector = new LocalConnector(server, null, null, null, 1, new HttpConnectionFactory(http))
    connector.setName(JettyUtils.SPARK_CONNECTOR_NAME)
    server.addConnector(connector)
    server.start()
    current = Some(connector)
    val made = Class.forName("org.apache.spark.ui.ServerInfo").getConstructors.head
    made.newInstance(server, Int.box(0), None, conf, pages).asInstanceOf[AnyRef]
  }

  private def open(): ServerSocketChannel = {
    val bridge = Option(System.getenv("SLUICE_BRIDGE")).getOrElse(throw new IOException("SLUICE_BRIDGE is not set"))
    val path = Path.of(bridge).resolveSibling("ui") // UI_SOCKET in runtime/spark/driver/ui_client.py
    Files.deleteIfExists(path)
    val channel = ServerSocketChannel.open(StandardProtocolFamily.UNIX)
    channel.bind(UnixDomainSocketAddress.of(path))
    // No queue: while all threads are busy, new connections are closed at once.
    val pool = new ThreadPoolExecutor(
      0, Threads, IdleSeconds, TimeUnit.SECONDS, new SynchronousQueue[Runnable], (work: Runnable) => daemon(work),
      (work: Runnable, _: ThreadPoolExecutor) => work.asInstanceOf[RequestHandler].refuse())
    daemon(() => while (true) pool.execute(new RequestHandler(channel.accept()))).start()
    channel
  }

  private def daemon(work: Runnable): Thread = {
    val thread = new Thread(work, "sluice-ui-asked")
    thread.setDaemon(true)
    thread
  }

  private final class RequestHandler(channel: SocketChannel) extends Runnable {
    def refuse(): Unit = channel.close()

    override def run(): Unit =
      try {
        val out = Channels.newOutputStream(channel)
        out.write(answer(request()))
        out.flush()
      } catch { case NonFatal(_) => () } // the agent disconnected, or its request is malformed
      finally channel.close()

    private def request(): Array[Byte] = {
      val in = Channels.newInputStream(channel)
      val read = new ByteArrayOutputStream()
      var last = 0
      while (last != 0x0d0a0d0a) {
        val byte = in.read()
        if (byte < 0 || read.size == MaxRequestBytes) throw new IOException("the request is incomplete or too large")
        read.write(byte)
        last = (last << 8) | byte
      }
      read.toByteArray
    }

    private def answer(request: Array[Byte]): Array[Byte] =
      current.filter(_.isRunning) match {
        case None => Unavailable
        case Some(connector) =>
          Option(connector.getResponse(ByteBuffer.wrap(request), AnswerSeconds, TimeUnit.SECONDS)) match {
            case None                                         => Unavailable
            case Some(bytes) if bytes.remaining > MaxAnswerBytes => TooLarge
            case Some(bytes) =>
              val whole = new Array[Byte](bytes.remaining)
              bytes.get(whole)
              whole
          }
      }
  }
}
