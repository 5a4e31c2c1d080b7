package io.sluice.zookeeper

import java.io.{IOException, InputStream}
import java.net.{InetAddress, Socket}
import java.security.SecureRandom
import java.util.concurrent.{Executors, TimeUnit}
import java.util.function.Supplier
import javax.net.ssl._

import io.sluice.tls.Peers
import org.apache.zookeeper.common.{QuorumX509Util, X509Util, ZKConfig}
import org.slf4j.LoggerFactory

/** The SSLContext that ZooKeeper would build from its settings, with three additions
  * (`ssl.quorum.context.supplier.class`).
  *
  * The peer's SPIFFE ID must match `ssl.quorum.peers`: ZooKeeper accepts any certificate that the authority issued. A
  * handshake has a deadline as a whole, after which its connection is closed: ZooKeeper has a timeout for each read
  * only. There are no session tickets: a peer could use one to resume a session without being verified again.
  */
final class PunctualContext extends Supplier[SSLContext] {
  override def get(): SSLContext = {
    val (settings, config) = (new QuorumX509Util, new ZKConfig)
    val made = SSLContext.getInstance("TLSv1.3", "SunJSSE")
    try made.init(Array(keysOf(settings, config)), Array(new EnsembleTrust(authoritiesOf(settings, config), peers)), null)
    finally settings.close()
    made.getServerSessionContext.setSessionTimeout(PunctualContext.NoTicketsSessionTimeout)
    new SSLContext(new PunctualContext.Spi(made), made.getProvider, made.getProtocol) {}
  }

  private def peers: Peers = Peers.parse(System.getProperty(PunctualContext.PeersProperty, ""))

  private def keysOf(settings: QuorumX509Util, config: ZKConfig): KeyManager = X509Util.createKeyManager(
    config.getProperty(settings.getSslKeystoreLocationProperty),
    settings.getPasswordFromConfigPropertyOrFile(
      config, settings.getSslKeystorePasswdProperty, settings.getSslKeystorePasswdPathProperty),
    config.getProperty(settings.getSslKeystoreTypeProperty))

  /** Java's own trust manager, which ZooKeeper uses too in its FIPS mode (on by default). It verifies the host name of
    * the server if the socket's parameters request that.
    */
  private def authoritiesOf(settings: QuorumX509Util, config: ZKConfig): X509ExtendedTrustManager = X509Util.createTrustManager(
    config.getProperty(settings.getSslTruststoreLocationProperty),
    settings.getPasswordFromConfigPropertyOrFile(
      config, settings.getSslTruststorePasswdProperty, settings.getSslTruststorePasswdPathProperty),
    config.getProperty(settings.getSslTruststoreTypeProperty),
    config.getBoolean(settings.getSslCrlEnabledProperty),
    config.getBoolean(settings.getSslOcspEnabledProperty),
    settings.isServerHostnameVerificationEnabled(config),
    settings.isClientHostnameVerificationEnabled(config),
    false,
    X509Util.getFipsMode(config)) match {
    case extended: X509ExtendedTrustManager => extended
    case other                              => throw new IllegalStateException(s"$other is no X509ExtendedTrustManager")
  }
}

private[zookeeper] object PunctualContext {
  private val PeersProperty = "zookeeper.ssl.quorum.peers"
  private val HandshakeSeconds = 10L

  /** SunJSSE issues no TLS 1.3 tickets if the session timeout exceeds the 7 days that RFC 8446 (4.6.1) allows. */
  private val NoTicketsSessionTimeout = 8 * 24 * 3600

  private val log = LoggerFactory.getLogger(classOf[PunctualContext])
  private val deadlines = Executors.newSingleThreadScheduledExecutor(Daemons.named("handshake-deadlines"))

  private final class Spi(made: SSLContext) extends SSLContextSpi {
    override def engineInit(keys: Array[KeyManager], trusted: Array[TrustManager], random: SecureRandom): Unit = ()
    override def engineGetSocketFactory(): SSLSocketFactory = new Factory(made.getSocketFactory)
    override def engineGetServerSocketFactory(): SSLServerSocketFactory = made.getServerSocketFactory
    override def engineCreateSSLEngine(): SSLEngine = made.createSSLEngine()
    override def engineCreateSSLEngine(host: String, port: Int): SSLEngine = made.createSSLEngine(host, port)
    override def engineGetServerSessionContext(): SSLSessionContext = made.getServerSessionContext
    override def engineGetClientSessionContext(): SSLSessionContext = made.getClientSessionContext
    override def engineGetDefaultSSLParameters(): SSLParameters = made.getDefaultSSLParameters
    override def engineGetSupportedSSLParameters(): SSLParameters = made.getSupportedSSLParameters
  }

  private final class Factory(made: SSLSocketFactory) extends SSLSocketFactory {
    override def getDefaultCipherSuites: Array[String] = made.getDefaultCipherSuites
    override def getSupportedCipherSuites: Array[String] = made.getSupportedCipherSuites

    /** Wraps an accepted connection. ZooKeeper has already read its first bytes to tell TLS from plaintext. */
    override def createSocket(accepted: Socket, read: InputStream, close: Boolean): Socket =
      punctual(made.createSocket(accepted, read, close), accepted)

    // Outbound connections: ZooKeeper's own timeouts apply.
    override def createSocket(): Socket = made.createSocket()
    override def createSocket(connected: Socket, host: String, port: Int, close: Boolean): Socket =
      made.createSocket(connected, host, port, close)
    override def createSocket(host: String, port: Int): Socket = made.createSocket(host, port)
    override def createSocket(host: InetAddress, port: Int): Socket = made.createSocket(host, port)
    override def createSocket(host: String, port: Int, local: InetAddress, localPort: Int): Socket =
      made.createSocket(host, port, local, localPort)
    override def createSocket(host: InetAddress, port: Int, local: InetAddress, localPort: Int): Socket =
      made.createSocket(host, port, local, localPort)
  }

  /** Closes the connection if its handshake is late. It closes the underlying socket `accepted`, because closing
    * `secured` needs a lock that the handshake may hold.
    */
  private def punctual(secured: Socket, accepted: Socket): Socket = {
    @volatile var finished = false
    secured.asInstanceOf[SSLSocket].addHandshakeCompletedListener(_ => finished = true)
    val late: Runnable = () =>
      if (!finished && !accepted.isClosed) {
        log.warn("{} did not complete its TLS handshake within {} s", accepted.getRemoteSocketAddress, HandshakeSeconds)
        try accepted.close()
        catch { case _: IOException => () } // already closed
      }
    deadlines.schedule(late, HandshakeSeconds, TimeUnit.SECONDS)
    secured
  }
}
