package io.sluice.tls

import javax.net.ssl.{SSLContext, SSLEngine}

import scala.jdk.CollectionConverters._

import io.netty.buffer.{ByteBufAllocator, PooledByteBufAllocator}
import io.netty.handler.ssl._
import io.netty.internal.tcnative.SSL

/** Makes the engine that does the work, once it is known which end of the connection it is. */
private[tls] trait EngineFactory {
  def create(client: Boolean): SSLEngine
}

/** An implementation of TLS 1.3 under the same rules: `-Dsluice.tls.engine`. */
private[tls] sealed trait Engines {
  def factory(identity: Identity, trust: PeerTrustManager, jdk: SSLContext): EngineFactory

  /** Makes handlers for connections that this process dials; whoever uses them has to [[PeerCheck.confirm]]. */
  def dialer(identity: Identity, trust: PeerTrustManager, jdk: SSLContext): ByteBufAllocator => SslHandler
}

private[tls] object Engines {
  def named(name: String): Engines = name match {
    case "jdk"     => Jdk
    case "openssl" => BoringSsl
    case other     => throw new IllegalArgumentException(s"there is no TLS engine $other")
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

  /** netty-tcnative, which is among Spark's jars. Left to itself, its servers issue TLS 1.3 tickets. */
  private object BoringSsl extends Engines {
    override def factory(identity: Identity, trust: PeerTrustManager, jdk: SSLContext): EngineFactory = {
      OpenSsl.ensureAvailability() // no silent fall-back to something else
      val keys = new GenerationKeyManager(identity)
      val server = pinned(SslContextBuilder.forServer(keys).clientAuth(ClientAuth.REQUIRE), trust)
      val client = clientContext(keys, trust)
      wanted =>
        if (wanted) client.newEngine(PooledByteBufAllocator.DEFAULT)
        else withoutTickets(server.newEngine(PooledByteBufAllocator.DEFAULT))
    }

    /** Netty's own handler knows this engine and spares copies that it makes for any other. */
    override def dialer(
        identity: Identity, trust: PeerTrustManager, jdk: SSLContext): ByteBufAllocator => SslHandler = {
      OpenSsl.ensureAvailability()
      val client = clientContext(new GenerationKeyManager(identity), trust)
      allocator => client.newHandler(allocator)
    }

    private def clientContext(keys: GenerationKeyManager, trust: PeerTrustManager): SslContext =
      pinned(SslContextBuilder.forClient().keyManager(keys).endpointIdentificationAlgorithm(null), trust)

    /** No resumption that would skip the trust manager; checked, for the setting is made past Netty. */
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
