package io.sluice.tls

import java.nio.file.Path
import java.security.KeyManagementException
import java.security.cert.CRLException
import java.time.Instant
import java.util.Date
import java.util.concurrent.locks.ReentrantLock

import scala.annotation.tailrec
import scala.util.control.NonFatal

/** What is in memory of an identity directory; everything in it belongs together. */
private[tls] final class Loaded(val generation: Generation, val lists: Revocations, val at: Instant)

/** An identity directory (`key.pem`, `chain.pem`, `ca.pem`, `peers`, `crl.pem`), read again when its files change.
  *
  * The first load must succeed. Later, a set that does not fit together (half of a replacement is written) or cannot
  * be read leaves the previous generation in place and is tried again. The revocation lists change by themselves:
  * a file of them that is damaged, foreign, expired or older leaves those in use in place.
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

  /** The newest good revocation lists; the object changes with their content. */
  def revocations: Revocations = inMemory.lists

  /** Both of them; the object changes with either. Never waits for a look that is under way. */
  def inMemory: Loaded = {
    if (System.nanoTime() - lookedAt > LookInterval && looking.tryLock()) {
      try takeOver()
      finally looking.unlock()
    }
    loaded
  }

  /** Looks at the files now; [[Watcher]] does so each second, and otherwise who needs them after two. */
  def look(): Loaded = {
    looking.lock()
    try takeOver()
    finally looking.unlock()
    loaded
  }

  private def takeOver(): Unit = {
    lookedAt = System.nanoTime()
    val generation = reload().getOrElse(loaded.generation)
    val (lists, _) = reloadLists(generation, loaded.lists)
    // Taken over together: new authorities never without what they have revoked.
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

  /** A set that is being replaced right now gets some more chances. */
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

  /** The generation in the files, if it is complete and not the one in use. */
  private def reload(): Option[Generation] =
    try {
      val now = IdentityFiles.stampOf(directory)
      if (now == stamp) None
      else {
        val next = IdentityFiles.load(directory)
        // Files that changed while they were read are read again at the next look.
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

  /** Says the same only once. */
  private def complain(text: String): Unit =
    if (text != complaint) {
      complaint = text
      Log.line(text)
    }

  /** `lists` with what is newer in a file not seen before, and what was wrong with it. */
  private def reloadLists(generation: Generation, lists: Revocations): (Revocations, Option[Throwable]) = {
    val seen = (IdentityFiles.listsStampOf(directory), generation)
    // A file that went away changes nothing: what is revoked stays revoked.
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
