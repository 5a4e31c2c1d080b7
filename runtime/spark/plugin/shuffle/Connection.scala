package org.apache.spark.shuffle.sluice

import java.io.IOException
import java.util.concurrent.{CompletableFuture, ExecutionException, TimeUnit, TimeoutException}
import java.util.concurrent.atomic.AtomicInteger

import io.netty.bootstrap.Bootstrap
import io.netty.buffer.{ByteBuf, ByteBufAllocator}
import io.netty.channel.{Channel, ChannelFuture, ChannelInitializer, ChannelOption, EventLoopGroup, FixedRecvByteBufAllocator}
import io.sluice.tls.ShuffleTls

import org.apache.spark.internal.Logging
import org.apache.spark.network.util.{IOMode, NettyUtils}

/** A connection to one worker that is broken, or a worker that said no. */
private[sluice] class WorkerFailure(text: String, cause: Throwable = null) extends IOException(text, cause)

/** One connection to a worker in one direction, shared by all tasks of this process. */
private[sluice] abstract class Connection(val worker: WorkerAddress, direction: String) extends FrameReceiver with Logging {
  import Connection.MostCauses

  private val ready = new CompletableFuture[Frame]()
  @volatile private var channel: Channel = _
  @volatile private var failure: Throwable = _
  @volatile private var mayStay: () => Option[String] = () => None

  /** Connects and waits until the worker has said who it is. */
  def open(loops: EventLoopGroup, timeoutMillis: Long): this.type = {
    val bootstrap = new Bootstrap()
      .group(loops)
      .channel(NettyUtils.getClientChannelClass(Connection.Mode))
      .option(ChannelOption.TCP_NODELAY, java.lang.Boolean.TRUE)
      .option(ChannelOption.CONNECT_TIMEOUT_MILLIS, Int.box(Connection.ConnectMillis))
      .option(ChannelOption.RECVBUF_ALLOCATOR, new FixedRecvByteBufAllocator(Connection.ReadBytes))
      .handler(new ChannelInitializer[Channel] {
        override def initChannel(made: Channel): Unit = made.pipeline().addLast(new FrameDecoder(Connection.this))
      })
    val connecting = bootstrap.connect(worker.host, worker.port)
    channel = connecting.channel()
    connecting.addListener { (done: ChannelFuture) => if (done.isSuccess) secure() else ended(done.cause()) }
    try {
      val hello = ready.get(timeoutMillis, TimeUnit.MILLISECONDS)
      begin(hello)
      hello.release()
      this
    } catch {
      case error: ExecutionException => throw new WorkerFailure(s"${worker.name} cannot be reached: $causeText", error.getCause)
      case error @ (_: TimeoutException | _: InterruptedException) =>
        ended(new WorkerFailure(s"${worker.name} did not answer in time"))
        throw error match {
          case interrupted: InterruptedException => interrupted
          case _                                 => new WorkerFailure(s"${worker.name} did not answer in time", error)
        }
    }
  }

  private def secure(): Unit = ShuffleTls.secure(channel, worker.name, {
    case Left(error) => ended(error)
    case Right(revocation) =>
      mayStay = revocation
      channel.writeAndFlush(Wire.hello(direction))
  })

  def allocator: ByteBufAllocator = channel.alloc()

  def isOpen: Boolean = failure == null && channel.isActive

  /** Sends a frame, whatever becomes of it: that is seen by the lack of an answer or the end of the connection. */
  protected def write(frame: ByteBuf): Unit =
    if (failure == null) channel.writeAndFlush(frame, channel.voidPromise()) else frame.release()

  def send(frame: ByteBuf): Unit = write(frame)

  final override def received(frame: Frame): Unit = mayStay() match {
    case Some(reason) =>
      frame.release()
      ended(new WorkerFailure(reason))
    case None if !ready.isDone && frame.kind == Wire.Kind.HelloOk => ready.complete(frame)
    case None if frame.kind == Wire.Kind.Error && isFatal(frame)  =>
      val text = frame.text
      frame.release()
      ended(new WorkerFailure(s"${worker.name} refuses this process: $text"))
    case None if !ready.isDone =>
      frame.release()
      ended(new WorkerFailure(s"${worker.name} does not speak this protocol"))
    case None => answered(frame)
  }

  private def isFatal(frame: Frame): Boolean =
    !ready.isDone || frame.aux == Wire.Code.Protocol || frame.aux == Wire.Code.NotAllowed

  final override def ended(cause: Throwable): Unit = {
    val first = synchronized {
      val isFirst = failure == null
      if (isFirst) failure = cause
      isFirst
    }
    if (first) {
      ready.completeExceptionally(cause)
      channel.close()
      logInfo(s"the $direction connection to ${worker.name} has ended: $causeText")
      lost(new WorkerFailure(s"the connection to ${worker.name} has ended: $causeText", cause))
    }
  }

  /** What it came from: TLS engines wrap what a trust manager says in words of their own. */
  private def causeText: String =
    Iterator.iterate(failure)(_.getCause).takeWhile(_ != null).take(MostCauses).toSeq.lastOption
      .map(root => Option(root.getMessage).getOrElse(root.toString)).getOrElse("")

  /** The connection stands; `hello` is the worker's answer. */
  protected def begin(hello: Frame): Unit

  /** A frame came in; owns it. On the event loop. */
  protected def answered(frame: Frame): Unit

  /** The connection has ended; called once. */
  protected def lost(cause: WorkerFailure): Unit

  /** What a failed connection threw, for who is about to wait for it. */
  protected def failed: Option[WorkerFailure] =
    Option(failure).map(cause => new WorkerFailure(s"the connection to ${worker.name} has ended: $causeText", cause))
}

private[sluice] object Connection {
  val Mode: IOMode = IOMode.AUTO

  private val requests = new AtomicInteger()

  /** Unique in this process, so that a request keeps its number on whatever connections it goes out. */
  def nextRequest(): Int = requests.incrementAndGet()

  private val MostCauses = 8
  private val ConnectMillis = 5000
  private val ReadBytes = 256 << 10
}
