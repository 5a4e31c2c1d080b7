package io.sluice.tls

import java.security.{Provider, SecureRandom}
import javax.net.ssl._

/** The security provider behind `spark.ssl.rpc.protocol`. Its SSLContexts support mutual TLS 1.3 only. */
private[tls] final class SluiceProvider(identity: Identity, engines: Engines, evidence: Evidence)
    extends Provider("Sluice", "1.0", "TLS 1.3 with client certificates and SPIFFE identities, nothing else") {

  putService(new Provider.Service(
    this, "SSLContext", SluiceProvider.Algorithm, classOf[MutualTlsContext].getName, null, null) {
    override def newInstance(parameter: AnyRef): AnyRef =
      new MutualTlsContext(identity, engines, evidence, new PeerTrustManager(identity, _.peers))
  })
  // Use the JDK's engine, because Netty's gRPC servers negotiate h2 (ALPN) through it.
  putService(new Provider.Service(
    this, "SSLContext", SluiceProvider.ConnectAlgorithm, classOf[MutualTlsContext].getName, null, null) {
    override def newInstance(parameter: AnyRef): AnyRef =
      new MutualTlsContext(
        identity, Engines.named("jdk"), evidence.on("connect"), new PeerTrustManager(identity, Peers.gatewaysOf))
  })
}

object SluiceProvider {
  /** `TLS_PROTOCOL` in `runtime/spark/jvm/conf.py`. */
  val Algorithm = "SluiceTLSv1.3"

  /** For the listeners of Spark Connect: accepts gateways, but not the job's own processes. */
  val ConnectAlgorithm = "SluiceConnectTLSv1.3"

  val Protocols: Array[String] = Array("TLSv1.3")

  /** AES-GCM only: the JDK's ChaCha20 is several times slower, and every CPU that Spark runs on supports AES. */
  val Ciphers: Array[String] = Array("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384")
}

/** Takes key, certificates and accepted peers from the identity directory; ignores the managers passed to `init`. */
private[tls] final class MutualTlsContext(
    identity: Identity, engines: Engines, evidence: Evidence, trust: PeerTrustManager)
    extends SSLContextSpi {
  import SluiceProvider.{Ciphers, Protocols}

  private val sessions = MutualTlsContext.jdkContext(identity, trust)
  private val factory = engines.factory(identity, trust, sessions)

  override def engineInit(keys: Array[KeyManager], trusted: Array[TrustManager], random: SecureRandom): Unit = ()

  override def engineCreateSSLEngine(): SSLEngine = new HardenedEngine(factory, trust, evidence, null, -1)
  override def engineCreateSSLEngine(host: String, port: Int): SSLEngine =
    new HardenedEngine(factory, trust, evidence, host, port)

  override def engineGetSocketFactory(): SSLSocketFactory = enginesOnly()
  override def engineGetServerSocketFactory(): SSLServerSocketFactory = enginesOnly()
  private def enginesOnly(): Nothing = throw new UnsupportedOperationException("sluice provides SSLEngines only")

  override def engineGetServerSessionContext(): SSLSessionContext = sessions.getServerSessionContext
  override def engineGetClientSessionContext(): SSLSessionContext = sessions.getClientSessionContext
  override def engineGetDefaultSSLParameters(): SSLParameters = parameters
  override def engineGetSupportedSSLParameters(): SSLParameters = parameters

  private def parameters: SSLParameters = {
    val fixed = new SSLParameters(Ciphers.clone(), Protocols.clone())
    fixed.setNeedClientAuth(true)
    fixed
  }
}

private[tls] object MutualTlsContext {
  /** Disables TLS 1.3 session tickets, because a resumed session skips the trust manager: SunJSSE issues no tickets if
    * the session timeout exceeds the 7 days that RFC 8446 (4.6.1) allows.
    */
  private val NoTicketsSessionTimeout = 8 * 24 * 3600

  def jdkContext(identity: Identity, trust: PeerTrustManager): SSLContext = {
    val context = SSLContext.getInstance("TLSv1.3", "SunJSSE")
    context.init(Array(new GenerationKeyManager(identity)), Array(trust), null)
    context.getServerSessionContext.setSessionTimeout(NoTicketsSessionTimeout)
    context
  }
}
