package io.sluice.tls

import java.security.cert.{CertificateException, X509Certificate}
import javax.net.ssl.{SSLException, SSLHandshakeException, SSLPeerUnverifiedException, SSLSession}

/** Who the peer of one connection is, checked when the handshake has finished and whenever the revocation lists change.
  *
  * @param evidence where an admitted connection is recorded
  */
private[tls] final class PeerCheck(trust: PeerTrustManager, evidence: Evidence) {
  import SluiceProvider.{Ciphers, Protocols}

  // Read by the watcher's thread too.
  @volatile private var peerLeaf: X509Certificate = _
  @volatile private var listsSeen: Revocations = _

  /** Checks once more what the finished handshake agreed on, whatever the engine did, and records it.
    *
    * Returns the peer's SPIFFE ID.
    */
  def confirm(session: SSLSession, dialed: Boolean): String =
    try {
      if (!Protocols.contains(session.getProtocol) || !Ciphers.contains(session.getCipherSuite)) {
        throw new SSLHandshakeException(s"${session.getProtocol} with ${session.getCipherSuite} is not allowed")
      }
      val lists = trust.revocations
      val shown = leaf(session.getPeerCertificates)
      val peer = trust.admitFinished(shown, peerIsClient = !dialed)
      listsSeen = lists
      peerLeaf = shown
      evidence.record(
        Peers.spiffeId(leaf(session.getLocalCertificates)), peer, dialed, session.getProtocol, session.getCipherSuite)
      peer
    } catch {
      case error: CertificateException => throw new SSLHandshakeException(error.getMessage)
    }

  /** Why the peer of a finished handshake may not stay; None before that, and while it may.
    *
    * Cheap as long as the lists in use are those of the last call.
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

  /** Ends an open connection whose peer was revoked meanwhile: nothing more comes in or goes out. */
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
