package io.sluice.tls

import java.net.Socket
import java.security.{Principal, PrivateKey}
import java.security.cert.X509Certificate
import java.util.Date
import javax.net.ssl.{SSLEngine, X509ExtendedKeyManager, X509ExtendedTrustManager}

/** Verifies a peer: first the certification path (RFC 5280), then the SPIFFE ID, then the revocation status.
  *
  * @param peersOf returns the accepted peers for the generation of the identity in use
  */
private[tls] final class PeerTrustManager(identity: Identity, peersOf: Generation => Peers)
    extends X509ExtendedTrustManager {

  override def checkClientTrusted(chain: Array[X509Certificate], authType: String, engine: SSLEngine): Unit = {
    val generation = identity.current
    generation.authorities.checkClientTrusted(chain, authType, engine)
    peersOf(generation).verify(chain.head, Peers.ClientAuth)
    refuseRevoked(chain.head)
  }

  override def checkServerTrusted(chain: Array[X509Certificate], authType: String, engine: SSLEngine): Unit = {
    val generation = identity.current
    generation.authorities.checkServerTrusted(chain, authType, engine)
    peersOf(generation).verify(chain.head, Peers.ServerAuth)
    refuseRevoked(chain.head)
  }

  /** The CRLs in use. An engine checks its peer again when this object changes. */
  def revocations: Revocations = identity.revocations

  private def refuseRevoked(leaf: X509Certificate): Unit = {
    val lists = identity.revocations
    lists.checkFresh(leaf, new Date())
    lists.check(leaf)
  }

  /** Verifies the peer of a finished handshake again and returns its SPIFFE ID. */
  def verifyAfterHandshake(leaf: X509Certificate, peerIsClient: Boolean): String = {
    val id = peersOf(identity.current).verify(leaf, if (peerIsClient) Peers.ClientAuth else Peers.ServerAuth)
    refuseRevoked(leaf)
    id
  }

  // The provider creates engines only, so calls without an engine are refused.
  override def checkClientTrusted(chain: Array[X509Certificate], authType: String, socket: Socket): Unit = refuse()
  override def checkServerTrusted(chain: Array[X509Certificate], authType: String, socket: Socket): Unit = refuse()
  override def checkClientTrusted(chain: Array[X509Certificate], authType: String): Unit = refuse()
  override def checkServerTrusted(chain: Array[X509Certificate], authType: String): Unit = refuse()

  private def refuse(): Unit = throw new UnsupportedOperationException("sluice verifies peers of SSLEngines only")

  /** Empty, so the peer gets no hint: OpenSSL's engine would send the authorities of the process's start for ever. */
  override def getAcceptedIssuers: Array[X509Certificate] = Array.empty
}

/** Returns key and chain of one generation under one alias, so that a handshake never mixes two generations. */
private[tls] final class GenerationKeyManager(identity: Identity) extends X509ExtendedKeyManager {

  // The generations that running handshakes may still use, newest first.
  @volatile private var recent: List[Generation] = Nil

  private def newest(): String = synchronized {
    val generation = identity.current
    if (!recent.headOption.contains(generation)) recent = (generation :: recent).take(GenerationKeyManager.Kept)
    generation.alias
  }

  private def byAlias(alias: String): Option[Generation] = recent.find(_.alias == alias)

  private def choose(keyTypes: String*): String = {
    val ours = identity.current.key.getAlgorithm
    if (keyTypes.exists(wanted => wanted == ours || (ours == "EC" && wanted.startsWith("EC_")))) newest() else null
  }

  override def chooseEngineClientAlias(types: Array[String], issuers: Array[Principal], engine: SSLEngine): String =
    choose(types.toSeq: _*)
  override def chooseEngineServerAlias(keyType: String, issuers: Array[Principal], engine: SSLEngine): String =
    choose(keyType)
  override def chooseClientAlias(types: Array[String], issuers: Array[Principal], socket: Socket): String =
    choose(types.toSeq: _*)
  override def chooseServerAlias(keyType: String, issuers: Array[Principal], socket: Socket): String = choose(keyType)
  override def getClientAliases(keyType: String, issuers: Array[Principal]): Array[String] =
    Option(choose(keyType)).toArray
  override def getServerAliases(keyType: String, issuers: Array[Principal]): Array[String] =
    Option(choose(keyType)).toArray
  override def getCertificateChain(alias: String): Array[X509Certificate] = byAlias(alias).map(_.chain).orNull
  override def getPrivateKey(alias: String): PrivateKey = byAlias(alias).map(_.key).orNull
}

private[tls] object GenerationKeyManager {
  private val Kept = 4
}
