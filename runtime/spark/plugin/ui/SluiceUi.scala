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

/** Spark's UI without a listener: what Spark would serve on a TCP port is asked for over a private unix socket.
  *
  * The guard (`io.sluice.tls.Guard`) makes `JettyUtils.startJettyServer` end here, whoever calls it. The other end is the
  * driver agent (`runtime/spark/driver/ui_client.py`), which asks in the JobMaster's name. The socket is beside the bridge, in
  * a directory that only this user can enter.
  */
object SluiceUi {
  private val Threads = 4
  private val IdleSeconds = 30L
  private val AnswerSeconds = 10L
  private val MaxRequestBytes = 8 << 10 // MAX_REQUEST_BYTES in runtime/spark/driver/ui_client.py
  private val MaxAnswerBytes = 3 << 20 // MAX_ANSWER_BYTES there
  private val Unavailable = "HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".getBytes(ISO_8859_1)
  private val TooLarge = "HTTP/1.0 507 Insufficient Storage\r\nContent-Length: 0\r\n\r\n".getBytes(ISO_8859_1)

  @volatile private var current: Option[LocalConnector] = None
  private lazy val listening: ServerSocketChannel = open()

  /** In the place of a server with a port: one whose only connector is in memory. Returns a `ServerInfo`, which names
    * Jetty's classes as they are not called in Spark's jars; so the compiler must not look at it.
    */
  def start(conf: SparkConf, name: String): AnyRef = {
    val made = inMemory(conf, name)
    listen()
    made
  }

  /** Begins to answer over the socket, once. */
  private[ui] def listen(): Unit = listening

  /** The server alone. */
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
    // No queue: who comes while all threads are busy is told so by a closed connection.
    val pool = new ThreadPoolExecutor(
      0, Threads, IdleSeconds, TimeUnit.SECONDS, new SynchronousQueue[Runnable], (work: Runnable) => daemon(work),
      (work: Runnable, _: ThreadPoolExecutor) => work.asInstanceOf[Asked].refuse())
    daemon(() => while (true) pool.execute(new Asked(channel.accept()))).start()
    channel
  }

  private def daemon(work: Runnable): Thread = {
    val thread = new Thread(work, "sluice-ui-asked")
    thread.setDaemon(true)
    thread
  }

  private final class Asked(channel: SocketChannel) extends Runnable {
    def refuse(): Unit = channel.close()

    override def run(): Unit =
      try {
        val out = Channels.newOutputStream(channel)
        out.write(answer(request()))
        out.flush()
      } catch { case NonFatal(_) => () } // the agent went away, or asked for nothing that this serves
      finally channel.close()

    private def request(): Array[Byte] = {
      val in = Channels.newInputStream(channel)
      val read = new ByteArrayOutputStream()
      var last = 0
      while (last != 0x0d0a0d0a) {
        val byte = in.read()
        if (byte < 0 || read.size == MaxRequestBytes) throw new IOException("no whole request")
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
