package org.apache.spark.shuffle.sluice

import java.util.concurrent.{ConcurrentHashMap, LinkedBlockingQueue, TimeUnit}

import io.netty.buffer.ByteBuf

/** Fetches of all reduce tasks from one worker. */
private[sluice] final class FetchConnection(worker: WorkerAddress) extends Connection(worker, "fetch") {
  private val open = new ConcurrentHashMap[Int, FetchRequest]()

  override protected def begin(hello: Frame): Unit = ()

  /** Asks for `maps` of the partitions from `first` until before `end`. */
  def fetch(shuffle: Int, first: Int, end: Int, maps: Array[Long], ordered: Boolean, credit: Long): FetchRequest = {
    val request = new FetchRequest(this, Connection.nextRequest(), credit)
    open.put(request.number, request)
    failed match {
      case Some(cause) => request.fail(cause)
      case None        => send(encode(request.number, shuffle, first, end, maps, ordered, credit))
    }
    request
  }

  private def encode(
      number: Int, shuffle: Int, first: Int, end: Int, maps: Array[Long], ordered: Boolean, credit: Long): ByteBuf = {
    val length = maps.length * 8
    val frame = allocator.directBuffer(Wire.HeaderBytes + length)
    Wire.putHeader(
      frame, 0, Wire.Kind.Fetch, flags = if (ordered) Wire.OrderedFetch else 0, shuffle = shuffle, partition = first,
      request = number, length = length, count = maps.length, aux = end, extra = credit)
    frame.writerIndex(Wire.HeaderBytes)
    maps.foreach(frame.writeLongLE)
    frame
  }

  def forget(request: FetchRequest): Unit = open.remove(request.number)

  override protected def answered(frame: Frame): Unit = frame.kind match {
    case Wire.Kind.Data | Wire.Kind.End | Wire.Kind.Error =>
      val request = open.get(frame.request)
      if (request == null) frame.release() else request.offer(frame) // null: the reader has gone away
    case other =>
      frame.release()
      ended(new WorkerFailure(s"${worker.name} sent an unexpected frame of kind $other"))
  }

  override protected def lost(cause: WorkerFailure): Unit = open.values().forEach(_.fail(cause))
}

/** One FETCH and what has come for it; used by one task. The worker sends no more than it has credit for. */
private[sluice] final class FetchRequest(connection: FetchConnection, val number: Int, credit: Long) {
  private val arrived = new LinkedBlockingQueue[Either[WorkerFailure, Frame]]()
  private var consumed = 0L
  @volatile private var over = false

  def offer(frame: Frame): Unit = {
    arrived.add(Right(frame))
    if (over) releaseAll() // it was given up at this very moment
  }

  def fail(cause: WorkerFailure): Unit = arrived.add(Left(cause))

  /** The next frame, which the caller owns; waits for it.
    *
    * @param check called now and then while waiting, to throw when the task was killed
    */
  def next(timeoutMillis: Long, check: () => Unit): Frame = {
    var waited = 0L
    var found = arrived.poll()
    while (found == null) {
      check()
      found = arrived.poll(PushConnection.PollMillis, TimeUnit.MILLISECONDS)
      if (found == null) {
        waited += PushConnection.PollMillis
        if (waited >= timeoutMillis) {
          val stalled = new WorkerFailure(s"${connection.worker.name} has sent nothing for $timeoutMillis ms")
          connection.ended(stalled)
          throw stalled
        }
      }
    }
    found.fold(throw _, identity)
  }

  /** Gives the worker room again for what was taken in; in lumps, a frame each. */
  def consume(bytes: Int): Unit = {
    consumed += bytes
    if (consumed >= credit / FetchRequest.LumpsOfCredit) {
      connection.send(Wire.bare(connection.allocator, Wire.Kind.Credit, request = number, extra = consumed))
      consumed = 0
    }
  }

  /** Ends it, complete or not. */
  def close(complete: Boolean): Unit = if (!over) {
    over = true
    connection.forget(this)
    if (!complete && connection.isOpen) {
      connection.send(Wire.bare(connection.allocator, Wire.Kind.Cancel, request = number))
    }
    releaseAll()
  }

  private def releaseAll(): Unit =
    Iterator.continually(arrived.poll()).takeWhile(_ != null).foreach(_.foreach(_.release()))
}

private[sluice] object FetchRequest {
  private val LumpsOfCredit = 4
}
