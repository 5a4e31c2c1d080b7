package io.sluice.tls

import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import io.netty.channel.{Channel, ChannelFuture, ChannelFutureListener}
import io.netty.handler.ssl.SslHandler

/** The open Spark channels of this process. Lets idle channels be closed, too, when their peer is revoked.
  *
  * A TLS engine sees only bytes and cannot close its channel. Therefore [[Guard]] makes Spark's `TransportContext`
  * register each new channel here. A channel is removed when it is closed.
  */
object Connections {
  private val open = new ConcurrentHashMap[Channel, () => Option[String]]()

  /** Registers `channel`. Spark's `TransportContext` calls this when the channel's pipeline is complete.
    *
    * Throws IllegalStateException if the channel does not use our TLS engine.
    */
  def opened(channel: Channel): Unit =
    engineOf(channel) match {
      case Some(engine) => watch(channel, engine.revocation _)
      case None         => throw new IllegalStateException("a Spark channel does not use mutual TLS")
    }

  /** Watches `channel` until it is closed. [[closeRevoked]] closes it when `revocation` returns a reason. */
  private[tls] def watch(channel: Channel, revocation: () => Option[String]): Unit = {
    open.put(channel, revocation)
    channel.closeFuture().addListener(new ChannelFutureListener {
      override def operationComplete(closed: ChannelFuture): Unit = open.remove(channel)
    })
  }

  /** The number of open channels. */
  def size: Int = open.size

  /** Closes the connections whose peer was revoked, idle or not. */
  private[tls] def closeRevoked(): Unit = open.forEach { (channel, revocation) =>
    revocation().foreach { reason =>
      Log.line(s"an idle connection is ended: $reason")
      try channel.eventLoop().execute(() => end(channel))
      catch { case NonFatal(_) => () } // the event loop has terminated, and its channels with it
    }
  }

  /** Closes the channel from the TLS handler on, without close_notify: the engine refuses to send anything. */
  private def end(channel: Channel): Unit =
    Option(channel.pipeline().context(classOf[SslHandler])) match {
      case Some(tls) => tls.close()
      case None      => channel.close()
    }

  private def engineOf(channel: Channel): Option[HardenedEngine] =
    Option(channel.pipeline().get(classOf[SslHandler])).map(_.engine()).collect { case ours: HardenedEngine => ours }
}
