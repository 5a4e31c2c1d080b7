package org.apache.spark.shuffle.sluice

import java.io.IOException

import io.netty.buffer.{ByteBuf, ByteBufAllocator, Unpooled}
import io.netty.channel.{ChannelHandlerContext, ChannelInboundHandlerAdapter}

/** Splits the received bytes into frames. Copies the data once, from TLS's output into one buffer per payload. */
private[sluice] final class FrameDecoder(receiver: FrameReceiver) extends ChannelInboundHandlerAdapter {
  import Wire._

  private val header = Unpooled.buffer(HeaderBytes, HeaderBytes)
  private var payload: ByteBuf = _

  override def channelRead(context: ChannelHandlerContext, message: AnyRef): Unit = {
    val bytes = message.asInstanceOf[ByteBuf]
    try while (bytes.isReadable) take(context.alloc(), bytes)
    finally bytes.release()
  }

  private def take(allocator: ByteBufAllocator, bytes: ByteBuf): Unit = {
    if (payload == null) {
      fill(header, bytes)
      if (!header.isWritable) payload = payloadFor(allocator)
    }
    if (payload != null) {
      fill(payload, bytes)
      if (payload.writerIndex == header.getIntLE(LengthAt)) {
        val frame = new Frame(header, payload)
        payload = null
        header.clear()
        receiver.received(frame)
      }
    }
  }

  private def fill(into: ByteBuf, bytes: ByteBuf): Unit = {
    val wanted = if (into eq header) HeaderBytes else header.getIntLE(LengthAt)
    into.writeBytes(bytes, math.min(wanted - into.writerIndex, bytes.readableBytes))
  }

  private def payloadFor(allocator: ByteBufAllocator): ByteBuf = {
    if (header.getIntLE(MagicAt) != Magic) throw new IOException("received data is not a frame of a shuffle worker")
    val kind = header.getUnsignedByte(KindAt)
    val length = header.getIntLE(LengthAt)
    val limit = if (kind == Kind.Data) MaxDataBytes else MaxAnswerBytes
    if (length < 0 || length > limit) throw new IOException(s"a frame of kind $kind with ${Integer.toUnsignedString(length)} bytes")
    if (length == 0) Unpooled.EMPTY_BUFFER else allocator.directBuffer(length, length)
  }

  override def channelInactive(context: ChannelHandlerContext): Unit =
    receiver.ended(new IOException("the shuffle worker closed the connection"))

  override def exceptionCaught(context: ChannelHandlerContext, cause: Throwable): Unit = {
    receiver.ended(cause)
    context.close()
  }

  override def handlerRemoved(context: ChannelHandlerContext): Unit =
    if (payload != null) {
      payload.release()
      payload = null
    }
}

/** Receives the frames of a [[FrameDecoder]]. Called on the connection's event loop. */
private[sluice] trait FrameReceiver {
  /** Handles a frame and owns it. */
  def received(frame: Frame): Unit

  /** Called when no more frames arrive. May be called more than once. */
  def ended(cause: Throwable): Unit
}
