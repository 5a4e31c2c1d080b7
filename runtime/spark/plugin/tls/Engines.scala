package io.sluice.tls

import javax.net.ssl.{SSLContext, SSLEngine}

import scala.jdk.CollectionConverters._

import io.netty.buffer.{ByteBufAllocator, PooledByteBufAllocator}
import io.netty.handler.ssl._
import io.netty.internal.tcnative.SSL

/** Creates the engine that a [[HardenedEngine]] wraps, once the role in the handshake is known. */
private[tls] trait EngineFactory {
  def create(client: Boolean): SSLEngine
}

/** An implementation of TLS 1.3, selected by `-Dsluice.tls.engine`. All follow the same rules. */
private[tls] sealed trait Engines {
  def factory(identity: Identity, trust: PeerTrustManager, jdk: SSLContext): EngineFactory

  /** Creates handlers for outbound connections. The caller must call [[PeerCheck.confirm]] after the handshake. */
  def dialer(identity: Identity, trust: PeerTrustManager, jdk: SSLContext): ByteBufAllocator => SslHandler
}

private[tls] object Engines {
  def named(name: String): Engines = name match {
    case "jdk"     => Jdk
    case "openssl" => BoringSsl
    case other     => throw new IllegalArgumentException(s"unknown TLS engine $other, use jdk or openssl")
  }

  private object Jdk extends Engines {
    override def factory(identity: Identity, trust: PeerTrustManager, jdk: SSLContext): EngineFactory = { client =>
      val engine = jdk.createSSLEngine()
      engine.setUseClientMode(client)
      engine
    }

    override def dialer(
        identity: Identity, trust: PeerTrustManager, jdk: SSLContext): ByteBufAllocator => SslHandler = { _ =>
      val engine = jdk.createSSLEngine()
      engine.setUseClientMode(true)
      engine.setEnabledProtocols(SluiceProvider.Protocols.clone())
      engine.setEnabledCipherSuites(SluiceProvider.Ciphers.clone())
      new SslHandler(engine)
    }
  }

  /** netty-tcnative, which is part of Spark's jars. By default its servers issue TLS 1.3 session tickets. */
  private object BoringSsl extends Engines {
    override def factory(identity: Identity, trust: PeerTrustManager, jdk: SSLContext): EngineFactory = {
      OpenSsl.ensureAvailability() // fail instead of falling back to another engine
      val keys = new GenerationKeyManager(identity)
      val server = pinned(SslContextBuilder.forServer(keys).clientAuth(ClientAuth.REQUIRE), trust)
      val client = clientContext(keys, trust)
      wanted =>
        if (wanted) client.newEngine(PooledByteBufAllocator.DEFAULT)
        else withoutTickets(server.newEngine(PooledByteBufAllocator.DEFAULT))
    }

    /** Uses Netty's own handler, which avoids the copies that it makes for other engines. */
    override def dialer(
        identity: Identity, trust: PeerTrustManager, jdk: SSLContext): ByteBufAllocator => SslHandler = {
      OpenSsl.ensureAvailability()
      val client = clientContext(new GenerationKeyManager(identity), trust)
      allocator => client.newHandler(allocator)
    }

    private def clientContext(keys: GenerationKeyManager, trust: PeerTrustManager): SslContext =
      pinned(SslContextBuilder.forClient().keyManager(keys).endpointIdentificationAlgorithm(null), trust)

    /** Disables session tickets, because a resumed session skips the trust manager.
      *
      * Verifies the option afterwards, because it is not set through Netty.
      */
    private def withoutTickets(engine: SSLEngine): SSLEngine = {
      val pointer = engine.asInstanceOf[ReferenceCountedOpenSslEngine].sslPointer()
      SSL.setOptions(pointer, SSL.SSL_OP_NO_TICKET)
      if ((SSL.getOptions(pointer) & SSL.SSL_OP_NO_TICKET) == 0) {
        throw new IllegalStateException("session tickets cannot be turned off")
      }
      engine
    }

    private def pinned(builder: SslContextBuilder, trust: PeerTrustManager): SslContext =
      builder
        .trustManager(trust)
        .sslProvider(SslProvider.OPENSSL)
        .protocols(SluiceProvider.Protocols: _*)
        .ciphers(SluiceProvider.Ciphers.toSeq.asJava)
        .build()
  }
}
