package io.sluice.tls

import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.charset.StandardCharsets.US_ASCII
import java.nio.file.{Files, Path}
import java.nio.file.StandardOpenOption.{APPEND, CREATE, WRITE}
import java.nio.file.attribute.PosixFilePermissions
import java.time.Instant
import java.util.concurrent.atomic.AtomicInteger

import scala.util.control.NonFatal

/** Appends a line to `connections.jsonl` in the identity directory for each completed handshake.
  *
  * SPIFFE IDs, protocol and cipher names were checked against alphabets that need no escaping in JSON.
  */
private[tls] final class Evidence(directory: Path, channel: String = "data") {
  import Evidence._

  private val written = new AtomicInteger()

  def record(local: String, peer: String, dialed: Boolean, protocol: String, cipher: String): Unit =
    if (written.incrementAndGet() <= MaxLines) {
      val direction = if (dialed) "dialed" else "accepted"
      val now = Instant.now()
      val at = f"${now.getEpochSecond}%d.${now.getNano / 1000000}%03d"
      val line = s"""{"channel":"$channel","local":"$local","peer":"$peer","direction":"$direction",""" +
        s""""protocol":"$protocol","cipher":"$cipher","opened_at":$at}""" + "\n"
      try append(line)
      catch { case NonFatal(error) => Log.line(s"a connection could not be recorded: $error") }
    }

  /** The same file, for connections of another channel. */
  def on(other: String): Evidence = new Evidence(directory, other)

  private def append(line: String): Unit = synchronized {
    val path = directory.resolve("connections.jsonl")
    if (!Files.exists(path)) Files.createFile(path, OwnerOnly)
    val file = FileChannel.open(path, CREATE, WRITE, APPEND)
    try file.write(ByteBuffer.wrap(line.getBytes(US_ASCII)))
    finally file.close()
  }
}

private[tls] object Evidence {
  /** Most lines one process writes (`MAX_EVIDENCE_LINES` in `runtime/spark/evidence.py`). */
  private val MaxLines = 1000
  private val OwnerOnly = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))
}
