package io.sluice.tls

import scala.util.control.NonFatal

/** A daemon thread that reloads the identity directory even if nothing else uses it.
  *
  * Every second it loads changed files, updates the report, and closes the connections of revoked peers.
  */
private[tls] final class Watcher(identity: Identity, report: UseReport) extends Runnable {
  private var complaint = ""

  def start(): Unit = {
    Runtime.getRuntime.addShutdownHook(new Thread(() => report.remove(), "sluice-end"))
    val thread = new Thread(this, "sluice-identity")
    thread.setDaemon(true)
    thread.start()
  }

  override def run(): Unit = while (true) {
    refresh()
    try Thread.sleep(Watcher.IntervalMillis)
    catch { case _: InterruptedException => () } // this thread never stops
  }

  private def refresh(): Unit =
    try {
      report.writeIfChanged(identity.reloadNow())
      Connections.closeRevoked()
      complaint = ""
    } catch {
      case NonFatal(error) =>
        if (error.toString != complaint) Log.line(s"cannot refresh the identity: $error")
        complaint = error.toString
    }
}

private[tls] object Watcher {
  private val IntervalMillis = 1000L
}
