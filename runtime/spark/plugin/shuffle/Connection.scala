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

/** A connection to a worker failed, or the worker refused a request. */
private[sluice] class WorkerFailure(text: String, cause: Throwable = null) extends IOException(text, cause)

/** A connection to one worker in one direction (push or fetch), shared by all tasks of this process. */
private[sluice] abstract class Connection(val worker: WorkerAddress, direction: String) extends FrameReceiver with Logging {
  import Connection.MostCauses

  private val ready = new CompletableFuture[Frame]()
  @volatile private var channel: Channel = _
  @volatile private var failure: Throwable = _
  @volatile private var revocationReason: () => Option[String] = () => None

  /** Connects and waits for the worker's HELLO response; throws [[WorkerFailure]] if that fails. */
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
      revocationReason = revocation
      channel.writeAndFlush(Wire.hello(direction))
  })

  def allocator: ByteBufAllocator = channel.alloc()

  def isOpen: Boolean = failure == null && channel.isActive

  /** Sends a frame without waiting. A failure shows as a missing response or as the end of the connection. */
  protected def write(frame: ByteBuf): Unit =
    if (failure == null) channel.writeAndFlush(frame, channel.voidPromise()) else frame.release()

  def send(frame: ByteBuf): Unit = write(frame)

  final override def received(frame: Frame): Unit = revocationReason() match {
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

  /** The message of the root cause: TLS engines wrap the exceptions of a trust manager. */
  private def causeText: String =
    Iterator.iterate(failure)(_.getCause).takeWhile(_ != null).take(MostCauses).toSeq.lastOption
      .map(root => Option(root.getMessage).getOrElse(root.toString)).getOrElse("")

  /** Called when the connection is established. `hello` is the worker's response. */
  protected def begin(hello: Frame): Unit

  /** Handles a received frame and owns it. Called on the event loop. */
  protected def answered(frame: Frame): Unit

  /** Called once when the connection has ended. */
  protected def lost(cause: WorkerFailure): Unit

  /** The failure if the connection has ended, so that callers do not wait for a response. */
  protected def failed: Option[WorkerFailure] =
    Option(failure).map(cause => new WorkerFailure(s"the connection to ${worker.name} has ended: $causeText", cause))
}

private[sluice] object Connection {
  val Mode: IOMode = IOMode.AUTO

  private val requests = new AtomicInteger()

  /** Returns a number that is unique in this process, so that a request has the same number on all its connections. */
  def nextRequest(): Int = requests.incrementAndGet()

  private val MostCauses = 8
  private val ConnectMillis = 5000
  private val ReadBytes = 256 << 10
}
