package io.sluice.tls

import java.nio.file.Path
import java.security.KeyManagementException
import java.security.cert.CRLException
import java.time.Instant
import java.util.Date
import java.util.concurrent.locks.ReentrantLock

import scala.annotation.tailrec
import scala.util.control.NonFatal

/** A consistent snapshot of an identity directory in memory. */
private[tls] final class Loaded(val generation: Generation, val lists: Revocations, val at: Instant)

/** An identity directory (`key.pem`, `chain.pem`, `ca.pem`, `peers`, `crl.pem`), reloaded when its files change.
  *
  * The first load must succeed. Later, if the files cannot be read or are inconsistent (for example during a
  * replacement), the previous generation stays in use and the load is retried. CRLs are reloaded independently: if the
  * new file is damaged, expired, older than the CRLs in use or from an untrusted issuer, those in use stay.
  */
private[tls] final class Identity(directory: Path) {
  import Identity._

  private val looking = new ReentrantLock()
  private var stamp = ""
  private var listsSeen: (String, Generation) = _
  private var complaint = ""
  @volatile private var loaded = first()
  @volatile private var lookedAt = System.nanoTime()

  /** The newest complete generation. */
  def current: Generation = inMemory.generation

  /** The newest valid CRLs. A new object is returned when their content changes. */
  def revocations: Revocations = inMemory.lists

  /** Both of them. A new object is returned when either changes. Does not wait for a reload in another thread. */
  def inMemory: Loaded = {
    if (System.nanoTime() - lookedAt > LookInterval && looking.tryLock()) {
      try takeOver()
      finally looking.unlock()
    }
    loaded
  }

  /** Reloads changed files now. [[Watcher]] calls this every second; [[inMemory]] reloads if two seconds have passed.
    */
  def reloadNow(): Loaded = {
    looking.lock()
    try takeOver()
    finally looking.unlock()
    loaded
  }

  private def takeOver(): Unit = {
    lookedAt = System.nanoTime()
    val generation = reload().getOrElse(loaded.generation)
    val (lists, _) = reloadLists(generation, loaded.lists)
    // Replace both at once, so that new authorities are never in use without their CRLs.
    if ((generation ne loaded.generation) || (lists ne loaded.lists)) loaded = new Loaded(generation, lists, Instant.now())
  }

  private def first(): Loaded = {
    val generation = readFirst(FirstAttempts)
    reloadLists(generation, Revocations.Empty) match {
      case (lists, Some(error)) if lists.isEmpty =>
        throw new KeyManagementException(s"no usable revocation list in $directory", error)
      case (lists, _) => new Loaded(generation, lists, Instant.now())
    }
  }

  /** Retries while the files are being replaced. */
  @tailrec private def readFirst(attempts: Int): Generation = {
    val before = IdentityFiles.stampOf(directory)
    val found =
      try Right(IdentityFiles.load(directory))
      catch { case NonFatal(error) => Left(error) }
    val settled = IdentityFiles.stampOf(directory) == before
    found match {
      case Right(generation) if settled =>
        stamp = before
        generation
      case Left(error) if settled || attempts <= 1 => throw error
      case _ if attempts <= 1                      => throw new KeyManagementException(s"$directory keeps changing while it is read")
      case _ =>
        Thread.sleep(FirstPauseMillis)
        readFirst(attempts - 1)
    }
  }

  /** The generation in the files, if it is complete and newer than the one in use. */
  private def reload(): Option[Generation] =
    try {
      val now = IdentityFiles.stampOf(directory)
      if (now == stamp) None
      else {
        val next = IdentityFiles.load(directory)
        // If the files changed while they were read, try again at the next reload.
        if (IdentityFiles.stampOf(directory) != now) None
        else {
          stamp = now
          complaint = ""
          Log.line(s"identity in $directory was replaced")
          Some(next)
        }
      }
    } catch {
      case NonFatal(error) =>
        complain(s"identity in $directory is incomplete, the previous one stays: $error")
        None
    }

  /** Logs the message, but not twice in a row. */
  private def complain(text: String): Unit =
    if (text != complaint) {
      complaint = text
      Log.line(text)
    }

  /** Returns `lists` updated from a changed CRL file, and the error if a CRL in the file was not accepted. */
  private def reloadLists(generation: Generation, lists: Revocations): (Revocations, Option[Throwable]) = {
    val seen = (IdentityFiles.listsStampOf(directory), generation)
    // If the file was removed, the CRLs in use stay: a revoked certificate stays revoked.
    if (seen == listsSeen || seen._1.isEmpty) (lists, None)
    else {
      listsSeen = seen
      val (taken, wrong) =
        try {
          val (newer, problems) = lists.updated(IdentityFiles.readLists(directory), generation.anchors, new Date())
          (newer, problems.headOption.map(new CRLException(_)))
        } catch { case NonFatal(error) => (lists, Some(error)) }
      wrong.foreach(error => Log.line(s"revocation lists in $directory: not taken, the previous ones stay: $error"))
      (taken, wrong)
    }
  }
}

private[tls] object Identity {
  private val LookInterval = 2000L * 1000 * 1000 // nanoseconds
  private val FirstAttempts = 20
  private val FirstPauseMillis = 50L
}
