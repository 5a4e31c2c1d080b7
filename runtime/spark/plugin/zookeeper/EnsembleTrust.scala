package io.sluice.zookeeper

import java.net.Socket
import java.security.cert.X509Certificate
import javax.net.ssl.{SSLEngine, X509ExtendedTrustManager}

import io.sluice.tls.Peers

/** Whom the authorities vouch for and who is one of `peers`, whichever end has dialled. */
private[zookeeper] final class EnsembleTrust(authorities: X509ExtendedTrustManager, peers: Peers)
    extends X509ExtendedTrustManager {

  override def checkClientTrusted(chain: Array[X509Certificate], authType: String, socket: Socket): Unit = {
    authorities.checkClientTrusted(chain, authType, socket)
    peers.admit(chain.head, Peers.ClientAuth)
  }
  override def checkServerTrusted(chain: Array[X509Certificate], authType: String, socket: Socket): Unit = {
    authorities.checkServerTrusted(chain, authType, socket)
    peers.admit(chain.head, Peers.ServerAuth)
  }
  override def checkClientTrusted(chain: Array[X509Certificate], authType: String, engine: SSLEngine): Unit = {
    authorities.checkClientTrusted(chain, authType, engine)
    peers.admit(chain.head, Peers.ClientAuth)
  }
  override def checkServerTrusted(chain: Array[X509Certificate], authType: String, engine: SSLEngine): Unit = {
    authorities.checkServerTrusted(chain, authType, engine)
    peers.admit(chain.head, Peers.ServerAuth)
  }

  // Without a connection nothing can be said about the other end.
  override def checkClientTrusted(chain: Array[X509Certificate], authType: String): Unit = refuse()
  override def checkServerTrusted(chain: Array[X509Certificate], authType: String): Unit = refuse()
  private def refuse(): Unit = throw new UnsupportedOperationException("only the peers of connections are judged")

  override def getAcceptedIssuers: Array[X509Certificate] = authorities.getAcceptedIssuers
}
