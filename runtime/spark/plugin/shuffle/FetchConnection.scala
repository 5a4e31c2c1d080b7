package org.apache.spark.shuffle.sluice

import java.util.concurrent.{ConcurrentHashMap, LinkedBlockingQueue, TimeUnit}

import io.netty.buffer.ByteBuf

/** Receives the responses to one request. Called on the event loop: must not block. */
private[sluice] trait ResponseListener {
  def creditLimit: CreditLimit

  /** Handles a frame and owns it. */
  def offer(frame: Frame): Unit
  def fail(cause: WorkerFailure): Unit
}

/** The connection for the fetches of all reduce tasks from one worker. */
private[sluice] final class FetchConnection(worker: WorkerAddress) extends Connection(worker, "fetch") {
  private val open = new ConcurrentHashMap[Int, ResponseListener]()

  override protected def begin(hello: Frame): Unit = ()

  /** Requests `maps` of the partitions from `first` to `end` (exclusive). */
  def fetch(shuffle: Int, first: Int, end: Int, maps: Array[Long], ordered: Boolean, credit: Long): FetchRequest = {
    val request = new FetchRequest(this, Connection.nextRequest(), credit)
    sendRequest(request.number, request)(encode(request.number, shuffle, first, end, maps, ordered, credit))
    request
  }

  /** Sends a frame. `listener` receives the responses with the number `request`. */
  def sendRequest(request: Int, listener: ResponseListener)(frame: => ByteBuf): Unit = {
    open.put(request, listener)
    failed match {
      case Some(cause) => listener.fail(cause)
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

  /** Cancels a request: its responses are no longer needed. */
  def cancel(request: Int): Unit = {
    forget(request)
    if (isOpen) send(Wire.bare(allocator, Wire.Kind.Cancel, request = request))
  }

  /** Grants the worker credit for `bytes` more of a request. `maps`: how many maps a follower has read so far. */
  def grant(request: Int, bytes: Long, maps: Int = 0): Unit = {
    Option(open.get(request)).foreach(_.creditLimit.grant(bytes))
    send(Wire.bare(allocator, Wire.Kind.Credit, request = request, count = maps, extra = bytes))
  }

  override protected def answered(frame: Frame): Unit = frame.kind match {
    case Wire.Kind.Data | Wire.Kind.End | Wire.Kind.Maps | Wire.Kind.MapsSent | Wire.Kind.Error =>
      val request = open.get(frame.request)
      if (request == null) frame.release() // the request was cancelled
      else if (request.creditLimit.tryAdd(frame)) request.offer(frame)
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

/** One FETCH request and its received frames. Used by one task. */
private[sluice] final class FetchRequest(connection: FetchConnection, val number: Int, credit: Long)
    extends ResponseListener {
  override val creditLimit = new CreditLimit(credit)
  private val arrived = new LinkedBlockingQueue[Either[WorkerFailure, Frame]]()
  private var consumed = 0L
  @volatile private var over = false

  override def offer(frame: Frame): Unit = {
    arrived.add(Right(frame))
    if (over) releaseAll() // the request was closed at the same time
  }

  override def fail(cause: WorkerFailure): Unit = arrived.add(Left(cause))

  /** Waits for the next frame. The caller owns it.
    *
    * @param check called regularly while waiting; throws if the task was killed
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
    creditLimit.remove(frame)
    frame
  }

  /** Returns credit for consumed data to the worker, a quarter of the credit per frame. */
  def consume(bytes: Int): Unit = {
    consumed += bytes
    if (consumed >= credit / FetchRequest.LumpsOfCredit) {
      connection.grant(number, consumed)
      consumed = 0
    }
  }

  /** Ends the request; cancels it if it is not complete. */
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
