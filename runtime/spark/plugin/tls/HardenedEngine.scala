package io.sluice.tls

import java.nio.ByteBuffer
import java.util.{List => JList}
import java.util.function.BiFunction
import javax.net.ssl._
import javax.net.ssl.SSLEngineResult.HandshakeStatus

/** Delegates to another engine, but ignores changes of protocol, cipher suites and client authentication.
  *
  * Until its mode is set it acts as a server, the stricter role. Spark's `SSLFactory` calls `setNeedClientAuth(false)`
  * on every engine; this engine ignores the call.
  */
private[tls] final class HardenedEngine(
    factory: EngineFactory, trust: PeerTrustManager, evidence: Evidence, host: String, port: Int)
    extends SSLEngine(host, port) {
  import SluiceProvider.{Ciphers, Protocols}

  private var isClient = false
  private var working: SSLEngine = _
  @volatile private var finished = false
  private val check = new PeerCheck(trust, evidence)

  private def engine: SSLEngine = synchronized {
    if (working == null) working = harden(factory.create(isClient))
    working
  }

  private def harden(made: SSLEngine): SSLEngine = {
    made.setEnabledProtocols(Protocols.clone())
    made.setEnabledCipherSuites(Ciphers.clone())
    if (!isClient) made.setNeedClientAuth(true)
    made
  }

  override def setUseClientMode(client: Boolean): Unit = synchronized {
    if (client != isClient) {
      if (working != null && working.getHandshakeStatus != HandshakeStatus.NOT_HANDSHAKING) {
        throw new IllegalArgumentException("the mode is fixed once the handshake has begun")
      }
      isClient = client
      working = null
    }
  }
  override def getUseClientMode: Boolean = isClient

  // --- setters that have no effect ---
  override def setNeedClientAuth(need: Boolean): Unit = ()
  override def setWantClientAuth(want: Boolean): Unit = ()
  override def setEnabledProtocols(protocols: Array[String]): Unit = ()
  override def setEnabledCipherSuites(suites: Array[String]): Unit = ()
  override def setEnableSessionCreation(enable: Boolean): Unit = ()
  override def getNeedClientAuth: Boolean = !isClient
  override def getWantClientAuth: Boolean = false
  override def getSupportedProtocols: Array[String] = Protocols.clone()
  override def getEnabledProtocols: Array[String] = Protocols.clone()
  override def getSupportedCipherSuites: Array[String] = Ciphers.clone()
  override def getEnabledCipherSuites: Array[String] = Ciphers.clone()
  override def getEnableSessionCreation: Boolean = true
  override def getSSLParameters: SSLParameters = fixed(engine.getSSLParameters)
  override def setSSLParameters(parameters: SSLParameters): Unit = {
    engine.setSSLParameters(fixed(parameters))
    harden(engine)
  }

  private def fixed(parameters: SSLParameters): SSLParameters = {
    parameters.setProtocols(Protocols.clone())
    parameters.setCipherSuites(Ciphers.clone())
    if (!isClient) parameters.setNeedClientAuth(true)
    parameters
  }

  // --- the connection itself ---
  override def wrap(in: ByteBuffer, out: ByteBuffer): SSLEngineResult = noticed(engine.wrap(in, out))
  override def wrap(in: Array[ByteBuffer], offset: Int, length: Int, out: ByteBuffer): SSLEngineResult =
    noticed(engine.wrap(in, offset, length, out))
  override def unwrap(in: ByteBuffer, out: ByteBuffer): SSLEngineResult = noticed(engine.unwrap(in, out))
  override def unwrap(in: ByteBuffer, out: Array[ByteBuffer], offset: Int, length: Int): SSLEngineResult =
    noticed(engine.unwrap(in, out, offset, length))

  private def noticed(result: SSLEngineResult): SSLEngineResult = {
    if (finished) check.refuseRevoked()
    else if (result.getHandshakeStatus == HandshakeStatus.FINISHED) {
      finished = true
      check.confirm(engine.getSession, dialed = isClient)
    }
    result
  }

  /** The reason why the connection must be closed; None before the handshake ends and while the peer is not revoked. */
  def revocation(): Option[String] = check.revocation()

  override def getDelegatedTask: Runnable = engine.getDelegatedTask
  override def closeInbound(): Unit = engine.closeInbound()
  override def isInboundDone: Boolean = engine.isInboundDone
  override def closeOutbound(): Unit = engine.closeOutbound()
  override def isOutboundDone: Boolean = engine.isOutboundDone
  override def getSession: SSLSession = engine.getSession
  override def getHandshakeSession: SSLSession = engine.getHandshakeSession
  override def beginHandshake(): Unit = engine.beginHandshake()
  override def getHandshakeStatus: HandshakeStatus = engine.getHandshakeStatus
  override def getApplicationProtocol: String = engine.getApplicationProtocol
  override def getHandshakeApplicationProtocol: String = engine.getHandshakeApplicationProtocol
  override def setHandshakeApplicationProtocolSelector(s: BiFunction[SSLEngine, JList[String], String]): Unit =
    engine.setHandshakeApplicationProtocolSelector(s)
  override def getHandshakeApplicationProtocolSelector: BiFunction[SSLEngine, JList[String], String] =
    engine.getHandshakeApplicationProtocolSelector
}
