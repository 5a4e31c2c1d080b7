package io.sluice.tls

import java.nio.charset.StandardCharsets.US_ASCII
import java.nio.file.{FileAlreadyExistsException, Files, Path}
import java.nio.file.StandardCopyOption.ATOMIC_MOVE
import java.nio.file.attribute.PosixFilePermissions
import java.security.MessageDigest
import java.time.Instant
import java.time.temporal.ChronoUnit.SECONDS
import java.util.HexFormat

import scala.util.control.NonFatal

/** Tells in `in-use/<pid>.json` of the identity directory what this process has in memory (`pki/trust/in_use.py`).
  *
  * Whether a rotation may go on depends on it, the job does not: what cannot be written is said once and tried again.
  */
private[tls] final class UseReport(directory: Path) {
  import UseReport._

  private val process = ProcessHandle.current()
  private val folder = directory.resolve("in-use")
  private val report = folder.resolve(s"${process.pid}.json")
  private val staged = folder.resolve(s".${process.pid}.json.jvm.tmp")
  private var told: Loaded = _
  private var failed = false
  private var ended = false

  /** Writes the report unless it is there and says this. */
  def tell(loaded: Loaded): Unit = synchronized {
    if (!ended && ((loaded ne told) || !Files.exists(report))) {
      try {
        write(content(loaded))
        told = loaded
        failed = false
      } catch {
        case NonFatal(error) =>
          if (!failed) Log.line(s"$report cannot be written, a rotation will wait for this process: $error")
          failed = true
      }
    }
  }

  /** At a clean end of the process; nothing is written any more. */
  def remove(): Unit = synchronized {
    ended = true
    try Files.deleteIfExists(report)
    catch { case NonFatal(_) => () }
  }

  private def write(content: String): Unit = {
    try Files.createDirectory(folder, OwnerDirectory)
    catch { case _: FileAlreadyExistsException => () }
    try {
      Files.deleteIfExists(staged)
      Files.createFile(staged, OwnerFile)
      Files.write(staged, content.getBytes(US_ASCII))
      Files.move(staged, report, ATOMIC_MOVE)
    } finally Files.deleteIfExists(staged)
  }

  /** All values are numbers, hexadecimal, or a SPIFFE ID, whose alphabet needs no escaping in JSON. */
  private def content(loaded: Loaded): String = {
    val generation = loaded.generation
    val leaf = generation.chain.head
    val anchors = generation.anchors.map(anchor => s""""${KeyIds.subject(anchor)}"""").mkString("[", ",", "]")
    val lists = loaded.lists.numbers.map { case (issuer, number) => s""""$issuer":$number""" }.mkString("{", ",", "}")
    val program = if (generation.spiffeId.endsWith("/driver")) "driver" else "executor"
    s"""{"pid":${process.pid},"started":$started,"identity":"${generation.spiffeId}","program":"$program",""" +
      s""""leaf":"${sha256(leaf.getEncoded)}","issuer":"${KeyIds.issuer(leaf)}","anchors":$anchors,"crls":$lists,""" +
      s""""loaded_at":"${loaded.at.truncatedTo(SECONDS)}"}""" + "\n"
  }

  private def started: String = {
    val start = process.info().startInstant().orElse(Instant.EPOCH)
    f"${start.getEpochSecond}%d.${start.getNano / 10000000}%02d"
  }
}

private[tls] object UseReport {
  private val OwnerDirectory = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
  private val OwnerFile = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))

  private def sha256(content: Array[Byte]): String =
    HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(content))
}
