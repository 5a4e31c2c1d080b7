package io.sluice.zookeeper

import java.net.Socket
import java.util.concurrent._

import org.apache.zookeeper.server.ExitCode
import org.apache.zookeeper.server.quorum.{QuorumCnxManager, QuorumPeer, QuorumPeerMain}
import org.apache.zookeeper.server.quorum.auth.{NullQuorumAuthLearner, NullQuorumAuthServer}
import org.slf4j.LoggerFactory

/** ZooKeeper's server, which elects even while somebody at its port for elections does not get on with a handshake. */
object EnsembleServer {
  private val log = LoggerFactory.getLogger(getClass)

  def main(arguments: Array[String]): Unit = {
    val code =
      try {
        new Main().run(arguments)
        ExitCode.EXECUTION_FINISHED
      } catch {
        case error: Exception =>
          log.error("the server has failed", error)
          ExitCode.UNEXPECTED_ERROR
      }
    System.exit(code.getValue)
  }

  private final class Main extends QuorumPeerMain {
    def run(arguments: Array[String]): Unit = initializeAndRun(arguments)

    override protected def getQuorumPeer(): QuorumPeer = new QuorumPeer {
      override def createCnxnManager(): QuorumCnxManager = new Elections(this, tickTime * syncLimit)
    }
  }

  /** Without SASL the listener for elections itself waits for the TLS handshake and the introduction of whoever has
    * connected, one after the other, and hears nobody else meanwhile. Here each is waited for beside it.
    */
  private final class Elections(peer: QuorumPeer, timeoutMillis: Int)
      extends QuorumCnxManager(
        peer, peer.getMyId, peer.getView, new NullQuorumAuthServer, new NullQuorumAuthLearner, timeoutMillis,
        peer.getQuorumListenOnAllIPs, OutgoingThreads, false) {

    private val receivers = new ThreadPoolExecutor(
      0, MaxReceivers, IdleSeconds, TimeUnit.SECONDS, new SynchronousQueue[Runnable], Daemons.named("election-receiver"))

    override def receiveConnection(socket: Socket): Unit =
      try receivers.execute(() => super.receiveConnection(socket))
      catch {
        case _: RejectedExecutionException =>
          log.warn("{} is refused: {} others are not done with their introductions", socket.getRemoteSocketAddress, MaxReceivers)
          socket.close()
      }
  }

  private val OutgoingThreads = 20
  private val MaxReceivers = 64
  private val IdleSeconds = 10L
}
