package io.sluice.tls

import java.io.IOException
import java.util.concurrent.TimeUnit

import scala.util.control.NonFatal

import io.netty.buffer.ByteBufAllocator
import io.netty.channel.Channel
import io.netty.handler.ssl.SslHandler
import io.netty.util.concurrent.{Future, GenericFutureListener}

/** TLS for the connections of executors to shuffle workers: uses the job's identity and accepts shuffle workers only.
  */
private[tls] final class ShuffleTls(identity: Identity, engines: Engines, evidence: Evidence) {
  private val trust = new PeerTrustManager(identity, Peers.shuffleWorkersOf)
  private val dialer: ByteBufAllocator => SslHandler =
    engines.dialer(identity, trust, MutualTlsContext.jdkContext(identity, trust))

  def secure(channel: Channel, worker: String, admitted: Either[Throwable, () => Option[String]] => Unit): Unit = {
    val handler = dialer(channel.alloc())
    val check = new PeerCheck(trust, evidence)
    handler.setHandshakeTimeout(ShuffleTls.HandshakeSeconds, TimeUnit.SECONDS)
    channel.pipeline().addFirst(handler)
    handler.handshakeFuture().addListener(new GenericFutureListener[Future[Channel]] {
      override def operationComplete(done: Future[Channel]): Unit = admitted(
        if (done.isSuccess) {
          try {
            val peer = check.confirm(handler.engine().getSession, dialed = true)
            if (!peer.endsWith(s"/shuffle-worker/$worker")) throw new IOException(s"$peer answers in the place of $worker")
            Connections.watch(channel, check.revocation _)
            Right(check.revocation _)
          } catch { case NonFatal(error) => Left(error) }
        } else Left(done.cause()))
    })
  }
}

object ShuffleTls {
  private val HandshakeSeconds = 10L

  @volatile private var made: () => ShuffleTls = () => throw new IllegalStateException("this JVM has no identity")

  private[tls] def prepare(identity: Identity, engines: Engines, evidence: Evidence): Unit = {
    lazy val tls = new ShuffleTls(identity, engines, evidence)
    made = () => tls
  }

  /** Adds TLS as the first handler to the pipeline of the connected `channel`.
    *
    * @param worker the worker name that the peer's certificate must have
    * @param admitted called once. Left: the reason why the connection must be closed. Right: the peer is admitted, and
    *   the function returns the reason once its certificate is revoked.
    */
  def secure(channel: Channel, worker: String, admitted: Either[Throwable, () => Option[String]] => Unit): Unit =
    made().secure(channel, worker, admitted)
}
