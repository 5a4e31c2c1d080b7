package io.sluice.tls

import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import io.netty.channel.{Channel, ChannelFuture, ChannelFutureListener}
import io.netty.handler.ssl.SslHandler

/** The open channels of this process's Spark, so that those on which nothing moves can be ended as well.
  *
  * An engine sees no more than bytes and cannot close its channel. Therefore [[Guard]] makes Spark's `TransportContext`
  * tell of each channel that it sets up; a channel is forgotten when it is closed.
  */
object Connections {
  private val open = new ConcurrentHashMap[Channel, () => Option[String]]()

  /** Called by Spark's `TransportContext` when the pipeline of `channel` is complete; refuses one that is not ours. */
  def opened(channel: Channel): Unit =
    engineOf(channel) match {
      case Some(engine) => watch(channel, engine.revocation _)
      case None         => throw new IllegalStateException("a channel of Spark's is not mutual TLS")
    }

  /** Looks after `channel` until it is closed: it is ended when `revocation` gives a reason. */
  private[tls] def watch(channel: Channel, revocation: () => Option[String]): Unit = {
    open.put(channel, revocation)
    channel.closeFuture().addListener(new ChannelFutureListener {
      override def operationComplete(closed: ChannelFuture): Unit = open.remove(channel)
    })
  }

  /** How many are open. */
  def size: Int = open.size

  /** Ends the connections whose peer was revoked, idle or not. */
  private[tls] def endRevoked(): Unit = open.forEach { (channel, revocation) =>
    revocation().foreach { reason =>
      Log.line(s"an idle connection is ended: $reason")
      try channel.eventLoop().execute(() => end(channel))
      catch { case NonFatal(_) => () } // its event loop has ended, and it with it
    }
  }

  /** From the TLS handler outwards: there is nothing left to say to the peer, and the engine refuses to say it. */
  private def end(channel: Channel): Unit =
    Option(channel.pipeline().context(classOf[SslHandler])) match {
      case Some(tls) => tls.close()
      case None      => channel.close()
    }

  private def engineOf(channel: Channel): Option[HardenedEngine] =
    Option(channel.pipeline().get(classOf[SslHandler])).map(_.engine()).collect { case ours: HardenedEngine => ours }
}
