package io.sluice.zookeeper

import java.net.Socket
import java.security.cert.X509Certificate
import javax.net.ssl.{SSLEngine, X509ExtendedTrustManager}

import io.sluice.tls.Peers

/** Trusts peers, clients and servers alike, that the authorities certify and that `peers` accepts. */
private[zookeeper] final class EnsembleTrust(authorities: X509ExtendedTrustManager, peers: Peers)
    extends X509ExtendedTrustManager {

  override def checkClientTrusted(chain: Array[X509Certificate], authType: String, socket: Socket): Unit = {
    authorities.checkClientTrusted(chain, authType, socket)
    peers.verify(chain.head, Peers.ClientAuth)
  }
  override def checkServerTrusted(chain: Array[X509Certificate], authType: String, socket: Socket): Unit = {
    authorities.checkServerTrusted(chain, authType, socket)
    peers.verify(chain.head, Peers.ServerAuth)
  }
  override def checkClientTrusted(chain: Array[X509Certificate], authType: String, engine: SSLEngine): Unit = {
    authorities.checkClientTrusted(chain, authType, engine)
    peers.verify(chain.head, Peers.ClientAuth)
  }
  override def checkServerTrusted(chain: Array[X509Certificate], authType: String, engine: SSLEngine): Unit = {
    authorities.checkServerTrusted(chain, authType, engine)
    peers.verify(chain.head, Peers.ServerAuth)
  }

  // A peer cannot be verified without its connection.
  override def checkClientTrusted(chain: Array[X509Certificate], authType: String): Unit = refuse()
  override def checkServerTrusted(chain: Array[X509Certificate], authType: String): Unit = refuse()
  private def refuse(): Unit = throw new UnsupportedOperationException("a peer cannot be verified without a connection")

  override def getAcceptedIssuers: Array[X509Certificate] = authorities.getAcceptedIssuers
}
