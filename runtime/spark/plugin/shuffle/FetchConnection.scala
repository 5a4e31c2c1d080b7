package org.apache.spark.shuffle.sluice

import java.util.concurrent.{ConcurrentHashMap, LinkedBlockingQueue, TimeUnit}

import io.netty.buffer.ByteBuf

/** Whom the answers to one request are for. On the event loop: must not block. */
private[sluice] trait Answered {
  def room: Room

  /** Owns `frame`. */
  def offer(frame: Frame): Unit
  def fail(cause: WorkerFailure): Unit
}

/** Fetches of all reduce tasks from one worker. */
private[sluice] final class FetchConnection(worker: WorkerAddress) extends Connection(worker, "fetch") {
  private val open = new ConcurrentHashMap[Int, Answered]()

  override protected def begin(hello: Frame): Unit = ()

  /** Asks for `maps` of the partitions from `first` until before `end`. */
  def fetch(shuffle: Int, first: Int, end: Int, maps: Array[Long], ordered: Boolean, credit: Long): FetchRequest = {
    val request = new FetchRequest(this, Connection.nextRequest(), credit)
    ask(request.number, request)(encode(request.number, shuffle, first, end, maps, ordered, credit))
    request
  }

  /** Sends a frame whose answers have the number `request`. */
  def ask(request: Int, answered: Answered)(frame: => ByteBuf): Unit = {
    open.put(request, answered)
    failed match {
      case Some(cause) => answered.fail(cause)
      case None        => send(frame)
    }
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

  def forget(request: Int): Unit = open.remove(request)

  /** Nobody waits for the answers to a request any more. */
  def cancel(request: Int): Unit = {
    forget(request)
    if (isOpen) send(Wire.bare(allocator, Wire.Kind.Cancel, request = request))
  }

  /** The worker may send `bytes` more for a request; who follows has had `maps` now. */
  def grant(request: Int, bytes: Long, maps: Int = 0): Unit = {
    Option(open.get(request)).foreach(_.room.grant(bytes))
    send(Wire.bare(allocator, Wire.Kind.Credit, request = request, count = maps, extra = bytes))
  }

  override protected def answered(frame: Frame): Unit = frame.kind match {
    case Wire.Kind.Data | Wire.Kind.End | Wire.Kind.Maps | Wire.Kind.MapsSent | Wire.Kind.Error =>
      val request = open.get(frame.request)
      if (request == null) frame.release() // the reader has gone away
      else if (request.room.admits(frame)) request.offer(frame)
      else {
        frame.release()
        ended(new WorkerFailure(s"${worker.name} sends more than it was given credit for"))
      }
    case other =>
      frame.release()
      ended(new WorkerFailure(s"${worker.name} sent an unexpected frame of kind $other"))
  }

  override protected def lost(cause: WorkerFailure): Unit = open.values().forEach(_.fail(cause))
}

/** One FETCH and what has come for it; used by one task. */
private[sluice] final class FetchRequest(connection: FetchConnection, val number: Int, credit: Long)
    extends Answered {
  override val room = new Room(credit)
  private val arrived = new LinkedBlockingQueue[Either[WorkerFailure, Frame]]()
  private var consumed = 0L
  @volatile private var over = false

  override def offer(frame: Frame): Unit = {
    arrived.add(Right(frame))
    if (over) releaseAll() // it was given up at this very moment
  }

  override def fail(cause: WorkerFailure): Unit = arrived.add(Left(cause))

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
    val frame = found.fold(throw _, identity)
    room.taken(frame)
    frame
  }

  /** Gives the worker room again for what was taken in; in lumps, a frame each. */
  def consume(bytes: Int): Unit = {
    consumed += bytes
    if (consumed >= credit / FetchRequest.LumpsOfCredit) {
      connection.grant(number, consumed)
      consumed = 0
    }
  }

  /** Ends it, complete or not. */
  def close(complete: Boolean): Unit = if (!over) {
    over = true
    if (complete) connection.forget(number) else connection.cancel(number)
    releaseAll()
  }

  private def releaseAll(): Unit =
    Iterator.continually(arrived.poll()).takeWhile(_ != null).foreach(_.foreach(_.release()))
}

private[sluice] object FetchRequest {
  private val LumpsOfCredit = 4
}
