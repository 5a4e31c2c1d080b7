package io.sluice.zookeeper

import java.util.concurrent.ThreadFactory

/** Threads that keep no process alive. */
private[zookeeper] object Daemons {
  def named(name: String): ThreadFactory = { task =>
    val thread = new Thread(task, name)
    thread.setDaemon(true)
    thread
  }
}
