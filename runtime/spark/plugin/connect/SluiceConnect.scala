package org.apache.spark.sql.connect.service

import org.apache.spark.SparkContext

/** What `runtime/spark/driver/connect_session.py` needs of a Spark Connect server.
  *
  * How that listens is decided in `io.sluice.tls.ConnectTls`.
  */
object SluiceConnect {
  @volatile private var lastUse = System.currentTimeMillis()

  /** Starts the server; returns its port. */
  def start(context: SparkContext): Int = {
    SparkConnectService.start(context)
    lastUse = System.currentTimeMillis()
    SparkConnectService.localPort
  }

  /** For how long nobody has asked anything; 0 while an operation runs. */
  def idleMillis(): Long = {
    val now = System.currentTimeMillis()
    val running = SparkConnectService.executionManager.listActiveExecutions.exists(_.nonEmpty)
    val asked = SparkConnectService.sessionManager.listActiveSessions.map(_.lastAccessTimeMs)
    lastUse = if (running) now else (asked :+ lastUse).max
    now - lastUse
  }
}
