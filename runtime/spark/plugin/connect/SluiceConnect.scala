package org.apache.spark.sql.connect.service

import org.apache.spark.SparkContext

/** The functions of the Spark Connect server that `runtime/spark/driver/connect/session.py` calls.
  *
  * `io.sluice.tls.ConnectTls` configures the TLS of its listener.
  */
object SluiceConnect {
  @volatile private var lastUse = System.currentTimeMillis()

  /** Starts the server and returns its port. */
  def start(context: SparkContext): Int = {
    SparkConnectService.start(context)
    lastUse = System.currentTimeMillis()
    SparkConnectService.localPort
  }

  /** Milliseconds since the last request; 0 while an operation runs. */
  def idleMillis(): Long = {
    val now = System.currentTimeMillis()
    val running = SparkConnectService.executionManager.listActiveExecutions.exists(_.nonEmpty)
    val asked = SparkConnectService.sessionManager.listActiveSessions.map(_.lastAccessTimeMs)
    lastUse = if (running) now else (asked :+ lastUse).max
    now - lastUse
  }
}
