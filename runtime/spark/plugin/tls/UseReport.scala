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

/** Reports in a file which identity, authorities and CRLs this process has in memory (`pki/trust/reports.py`).
  *
  * The pid of a process in a sandbox has no meaning outside, where the process that started it identifies it.
  *
  * A rotation waits for this report, but the job does not depend on it: a failed write is logged once and retried.
  */
private[tls] final class UseReport private (report: Path) {
  import UseReport._

  private val process = ProcessHandle.current()
  private val staged = report.resolveSibling(s".${report.getFileName}.jvm.tmp")
  private var reported: Loaded = _
  private var failed = false
  private var ended = false

  /** Writes the report, unless the file exists and already describes `loaded`. */
  def writeIfChanged(loaded: Loaded): Unit = synchronized {
    if (!ended && ((loaded ne reported) || !Files.exists(report))) {
      try {
        write(content(loaded))
        reported = loaded
        failed = false
      } catch {
        case NonFatal(error) =>
          if (!failed) Log.line(s"$report cannot be written, a rotation will wait for this process: $error")
          failed = true
      }
    }
  }

  /** Removes the report at a clean exit of the process. Later calls of [[writeIfChanged]] write nothing. */
  def remove(): Unit = synchronized {
    ended = true
    try Files.deleteIfExists(report)
    catch { case NonFatal(_) => () }
  }

  private def write(content: String): Unit = {
    try Files.createDirectory(report.getParent, OwnerDirectory)
    catch { case _: FileAlreadyExistsException => () }
    try {
      Files.deleteIfExists(staged)
      Files.createFile(staged, OwnerFile)
      Files.write(staged, content.getBytes(US_ASCII))
      Files.move(staged, report, ATOMIC_MOVE)
    } finally Files.deleteIfExists(staged)
  }

  /** The report as JSON. Values need no escaping: they are numbers, hexadecimal, times or SPIFFE IDs. */
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
  /** `in-use/<pid>.json` of the identity directory. */
  def forIdentity(identity: Path): UseReport =
    new UseReport(identity.resolve("in-use").resolve(s"${ProcessHandle.current().pid}.json"))

  /** `in-use.json` in a directory that belongs to this process only. */
  def in(reports: Path): UseReport = new UseReport(reports.resolve("in-use.json"))

  private val OwnerDirectory = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
  private val OwnerFile = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))

  private def sha256(content: Array[Byte]): String =
    HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(content))
}
