package io.sluice.tls

import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.nio.charset.StandardCharsets.US_ASCII
import java.nio.file.{Files, NoSuchFileException, Path}
import java.nio.file.StandardCopyOption.{ATOMIC_MOVE, REPLACE_EXISTING}
import java.nio.file.StandardOpenOption.{APPEND, CREATE, WRITE}
import java.nio.file.attribute.PosixFilePermissions
import java.security.cert.X509Certificate
import java.security.interfaces.{ECPublicKey, RSAPublicKey}
import java.time.Instant

import scala.util.control.NonFatal

/** Appends a line to `connections.jsonl` in the report directory for each completed handshake.
  *
  * A full file is renamed to `connections.1.jsonl` and replaces the one before it, so only the latest connections are
  * kept. Each file after the first begins with a line that says how many connections were recorded before it.
  *
  * SPIFFE IDs, protocol and cipher names need no escaping in JSON: they were validated against restricted alphabets.
  */
private[tls] final class Evidence private (journal: Evidence.Journal, channel: String) {
  import Evidence._

  def this(directory: Path) = this(new Evidence.Journal(directory), "data")

  /** Records one connection. `shown` is the peer's verified certificate. */
  def record(
      local: String, peer: String, dialed: Boolean, protocol: String, cipher: String, shown: X509Certificate): Unit = {
    val direction = if (dialed) "dialed" else "accepted"
    val now = Instant.now()
    val at = f"${now.getEpochSecond}%d.${now.getNano / 1000000}%03d"
    val line = s"""{"channel":"$channel","local":"$local","peer":"$peer","direction":"$direction",""" +
      s""""protocol":"$protocol","cipher":"$cipher","opened_at":$at,""" +
      s""""certificate":${describe(shown)}}""" + "\n"
    try journal.append(line)
    catch { case NonFatal(error) => Log.line(s"a connection could not be recorded: $error") }
  }

  /** Returns an Evidence that records connections of the channel `other` in the same file. */
  def on(other: String): Evidence = new Evidence(journal, other)
}

private[tls] object Evidence {
  /** The evidence files of this process. */
  private final class Journal(directory: Path) {
    private val path = directory.resolve("connections.jsonl")
    private var recorded = 0L

    def append(line: String): Unit = synchronized {
      if (recorded > 0 && recorded % MaxLines == 0) {
        try Files.move(path, directory.resolve("connections.1.jsonl"), ATOMIC_MOVE, REPLACE_EXISTING)
        catch { case _: NoSuchFileException => } // the file was removed
        write(s"""{"before":$recorded}""" + "\n")
      }
      write(line)
      recorded += 1
    }

    private def write(line: String): Unit = {
      if (!Files.exists(path)) Files.createFile(path, OwnerOnly)
      val file = FileChannel.open(path, CREATE, WRITE, APPEND)
      try file.write(ByteBuffer.wrap(line.getBytes(US_ASCII)))
      finally file.close()
    }
  }

  /** Maximum number of connections in one file (`MAX_EVIDENCE_LINES` in `runtime/spark/evidence.py`). */
  private val MaxLines = 1000
  private val AuthorityKeyIdentifier = "2.5.29.35"

  /** Describes a certificate as JSON, with the fields of `sluice.pki.tls.connections.PeerCertificate`.
    *
    * The values need no escaping.
    */
  def describe(shown: X509Certificate): String = {
    val key = shown.getPublicKey match {
      case ec: ECPublicKey => s"EC P-${ec.getParams.getOrder.bitLength}"
      case rsa: RSAPublicKey => s"RSA ${rsa.getModulus.bitLength}"
      case other => other.getAlgorithm.filter(each => each < 128 && each.isLetterOrDigit)
    }
    s"""{"serial":"${shown.getSerialNumber.toString(16)}","issuer":"${issuer(shown)}",""" +
      s""""not_before":${shown.getNotBefore.getTime / 1000},"not_after":${shown.getNotAfter.getTime / 1000},""" +
      s""""key":"$key"}"""
  }

  /** The authority key identifier (RFC 5280, 4.2.1.1); empty if it does not have its usual form:
    * OCTET STRING { SEQUENCE { [0] identifier } }, each with a length of one byte.
    */
  private def issuer(shown: X509Certificate): String =
    Option(shown.getExtensionValue(AuthorityKeyIdentifier)) match {
      case Some(der) if der.length > 6 && der(4) == 0x80.toByte && der(5) > 0 && der.length >= 6 + der(5) =>
        der.slice(6, 6 + der(5)).map(each => f"${each & 0xff}%02x").mkString
      case _ => ""
    }

  private val OwnerOnly = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))
}
