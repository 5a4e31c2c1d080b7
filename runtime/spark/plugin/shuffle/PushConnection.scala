package org.apache.spark.shuffle.sluice

import java.util.concurrent.ConcurrentHashMap

import io.netty.buffer.ByteBuf

/** The progress of the readers that follow one writer at one worker.
  *
  * @param unread bytes that they have not read yet
  * @param partitions number of partitions that they read; only in responses to PRODUCE
  * @param maps number of maps, from the first, that every reader has read; only in responses to PRODUCE
  */
private[sluice] final case class Progress(unread: Long, partitions: Long, maps: Long)

/** Receives a worker's responses to the pushes of one map attempt. Called on the event loop: must not block. */
private[sluice] trait PushListener {
  /** The worker accepted a COMMIT or PRODUCE frame. */
  def accepted(progress: Progress): Unit
  def refused(failure: WorkerFailure): Unit

  /** Throws if the task was killed or its push has failed. */
  def check(): Unit
}

/** The connection for the pushes of all map tasks to one worker, limited by the window that the worker grants. */
private[sluice] final class PushConnection(worker: WorkerAddress, stallMillis: Long) extends Connection(worker, "push") {
  import PushConnection._

  private val listeners = new ConcurrentHashMap[Int, PushListener]()
  private val window = new Object
  private var credit = 0L
  private var sent = 0L
  private var accepted = 0L
  private var heardAt = System.nanoTime()

  override protected def begin(hello: Frame): Unit = window.synchronized { credit = Integer.toUnsignedLong(hello.aux) }

  /** Passes responses with the number `request` to `listener` from now on. */
  def listen(request: Int, listener: PushListener): Unit = {
    listeners.put(request, listener)
    failed.foreach(listener.refused)
  }

  def forget(request: Int): Unit = listeners.remove(request)

  /** Sends a PUSH frame with a payload of `bytes` as soon as the window allows; owns `frame`. */
  def push(frame: ByteBuf, bytes: Int, listener: PushListener): Unit = {
    var mine = true
    val since = System.nanoTime()
    try window.synchronized {
      // A frame larger than the whole window is sent when nothing else is in flight.
      while (credit <= 0 || (sent > accepted && sent - accepted + bytes > credit)) {
        failed.foreach(throw _)
        listener.check()
        if (System.nanoTime() - math.max(since, heardAt) > stallMillis * 1000000L) {
          ended(new WorkerFailure(s"${worker.name} has accepted nothing for $stallMillis ms"))
        }
        window.wait(PollMillis)
      }
      failed.foreach(throw _)
      sent += bytes
      mine = false
      write(frame)
    } finally if (mine) frame.release()
  }

  override protected def answered(frame: Frame): Unit = try frame.kind match {
    case Wire.Kind.PushOk => granted(frame.extra, Integer.toUnsignedLong(frame.aux))
    case Wire.Kind.CommitOk | Wire.Kind.ProduceOk =>
      val progress = Progress(frame.extra, Integer.toUnsignedLong(frame.count), Integer.toUnsignedLong(frame.aux))
      Option(listeners.get(frame.request)).foreach(_.accepted(progress))
    case Wire.Kind.Error =>
      val failure = new WorkerFailure(s"${worker.name}: ${frame.text}")
      if (frame.aux == Wire.Code.Draining) Workers.avoid(worker)
      Option(listeners.get(frame.request)).foreach(_.refused(failure))
    case other => ended(new WorkerFailure(s"${worker.name} sent an unexpected frame of kind $other"))
  } finally frame.release()

  private def granted(total: Long, window: Long): Unit = this.window.synchronized {
    accepted = math.max(accepted, total)
    credit = window
    heardAt = System.nanoTime()
    this.window.notifyAll()
  }

  override protected def lost(cause: WorkerFailure): Unit = {
    window.synchronized(window.notifyAll())
    listeners.values().forEach(_.refused(cause))
  }
}

private[sluice] object PushConnection {
  /** Interval at which a waiting task checks whether it was killed. */
  val PollMillis = 100L
}
