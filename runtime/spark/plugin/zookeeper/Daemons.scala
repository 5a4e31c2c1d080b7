package io.sluice.zookeeper

import java.util.concurrent.ThreadFactory

/** Factories for daemon threads, which do not keep a process alive. */
private[zookeeper] object Daemons {
  def named(name: String): ThreadFactory = { task =>
    val thread = new Thread(task, name)
    thread.setDaemon(true)
    thread
  }
}
