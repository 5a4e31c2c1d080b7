package io.sluice.tls

import scala.util.control.NonFatal

/** One daemon thread that looks at the identity directory when nothing else does.
  *
  * Each second it takes over what is new, tells so, and ends the connections of whoever was revoked.
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
    look()
    try Thread.sleep(Watcher.IntervalMillis)
    catch { case _: InterruptedException => () } // nobody has a reason to stop this thread
  }

  private def look(): Unit =
    try {
      report.tell(identity.look())
      Connections.endRevoked()
      complaint = ""
    } catch {
      case NonFatal(error) =>
        if (error.toString != complaint) Log.line(s"the identity could not be looked after: $error")
        complaint = error.toString
    }
}

private[tls] object Watcher {
  private val IntervalMillis = 1000L
}
