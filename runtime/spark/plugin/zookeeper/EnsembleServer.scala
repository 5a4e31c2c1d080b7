package io.sluice.zookeeper

import java.net.Socket
import java.util.concurrent._

import org.apache.zookeeper.server.ExitCode
import org.apache.zookeeper.server.quorum.{QuorumCnxManager, QuorumPeer, QuorumPeerMain}
import org.apache.zookeeper.server.quorum.auth.{NullQuorumAuthLearner, NullQuorumAuthServer}
import org.slf4j.LoggerFactory

/** ZooKeeper's server, with an election port that a stalled handshake of one client cannot block. */
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

  /** Receives each election connection in a thread of its own.
    *
    * Without SASL, ZooKeeper's election listener performs the TLS handshake and reads the peer's initial message in its
    * own thread, one connection after the other, and accepts no other connection meanwhile.
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
          log.warn("refused {}: {} other handshakes are not complete yet", socket.getRemoteSocketAddress, MaxReceivers)
          socket.close()
      }
  }

  private val OutgoingThreads = 20
  private val MaxReceivers = 64
  private val IdleSeconds = 10L
}
