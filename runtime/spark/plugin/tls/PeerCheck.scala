package io.sluice.tls

import java.security.cert.{CertificateException, X509Certificate}
import javax.net.ssl.{SSLException, SSLHandshakeException, SSLPeerUnverifiedException, SSLSession}

/** Verifies the peer of one connection after the handshake, and again whenever the CRLs change.
  *
  * @param evidence records the admitted connection
  */
private[tls] final class PeerCheck(trust: PeerTrustManager, evidence: Evidence) {
  import SluiceProvider.{Ciphers, Protocols}

  // Also read by the watcher's thread.
  @volatile private var peerLeaf: X509Certificate = _
  @volatile private var listsSeen: Revocations = _

  /** Verifies the result of the finished handshake, independently of the engine, and records it.
    *
    * Returns the peer's SPIFFE ID. Throws SSLHandshakeException if protocol, cipher suite or peer are not allowed.
    */
  def confirm(session: SSLSession, dialed: Boolean): String =
    try {
      if (!Protocols.contains(session.getProtocol) || !Ciphers.contains(session.getCipherSuite)) {
        throw new SSLHandshakeException(s"${session.getProtocol} with ${session.getCipherSuite} is not allowed")
      }
      val lists = trust.revocations
      val shown = leaf(session.getPeerCertificates)
      val peer = trust.verifyAfterHandshake(shown, peerIsClient = !dialed)
      listsSeen = lists
      peerLeaf = shown
      evidence.record(
        Peers.spiffeId(leaf(session.getLocalCertificates)), peer, dialed, session.getProtocol, session.getCipherSuite,
        shown)
      peer
    } catch {
      case error: CertificateException => throw new SSLHandshakeException(error.getMessage)
    }

  /** The reason why the connection must be closed; None before the handshake ends and while the peer is not revoked.
    *
    * Cheap as long as the CRLs have not changed since the last call.
    */
  def revocation(): Option[String] = {
    val lists = trust.revocations
    if (peerLeaf == null || (lists eq listsSeen)) None
    else
      try {
        lists.check(peerLeaf)
        listsSeen = lists
        None
      } catch { case error: CertificateException => Some(error.getMessage) }
  }

  /** Throws SSLException if the peer was revoked since the handshake, so that no more data is read or written. */
  def refuseRevoked(): Unit = {
    if (peerLeaf == null) throw new SSLException("the peer of this connection was not admitted")
    revocation().foreach { reason =>
      Log.line(s"a connection is ended: $reason")
      throw new SSLException(reason)
    }
  }

  private def leaf(chain: Array[java.security.cert.Certificate]): X509Certificate = chain match {
    case Array(first: X509Certificate, _*) => first
    case _                                 => throw new SSLPeerUnverifiedException("a handshake without certificates")
  }
}
