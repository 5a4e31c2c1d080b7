package io.sluice.tls

import java.security.MessageDigest
import java.security.cert.{CertificateException, X509Certificate}
import java.util.HexFormat

/** A minimal DER (X.690) parser for the certificate extensions that the JDK returns encoded. */
private[tls] object Der {
  val Integer = 0x02
  val BitString = 0x03
  val OctetString = 0x04
  val Sequence = 0x30
  val FirstImplicit = 0x80

  private val MaxLengthBytes = 2
  private val LongForm = 0x80

  /** Returns the content of the first element, which must have `tag`, and the bytes after the element. */
  def first(encoded: Array[Byte], tag: Int): (Array[Byte], Array[Byte]) = {
    if (encoded == null || encoded.length < 2 || (encoded(0) & 0xff) != tag) throw damaged()
    val short = encoded(1) & 0xff
    val lengthBytes = if (short < LongForm) 0 else short - LongForm
    if (lengthBytes > MaxLengthBytes || encoded.length < 2 + lengthBytes || short == LongForm) throw damaged()
    val length = if (short < LongForm) short else encoded.slice(2, 2 + lengthBytes).foldLeft(0)(_ << 8 | _ & 0xff)
    val (content, rest) = encoded.drop(2 + lengthBytes).splitAt(length)
    if (content.length != length) throw damaged()
    (content, rest)
  }

  /** Returns the content of the only element; throws if bytes follow it. */
  def only(encoded: Array[Byte], tag: Int): Array[Byte] = first(encoded, tag) match {
    case (content, rest) => if (rest.isEmpty) content else throw damaged()
  }

  private def damaged() = new CertificateException("a certificate extension is malformed")
}

/** The identifiers by which certificates refer to keys (RFC 5280, 4.2.1.1 and 4.2.1.2), in hexadecimal. */
private[tls] object KeyIds {
  private val SubjectKey = "2.5.29.14"
  private val AuthorityKey = "2.5.29.35"

  /** The certificate's subject key identifier, or else the hash of its key (4.2.1.2, method 1). */
  def subject(certificate: X509Certificate): String = hex(certificate.getExtensionValue(SubjectKey) match {
    case null      => ofKey(certificate)
    case extension => Der.only(Der.only(extension, Der.OctetString), Der.OctetString)
  })

  /** The certificate's authority key identifier; empty if it has none. */
  def issuer(certificate: X509Certificate): String = certificate.getExtensionValue(AuthorityKey) match {
    case null => ""
    case extension =>
      hex(Der.first(Der.only(Der.only(extension, Der.OctetString), Der.Sequence), Der.FirstImplicit)._1)
  }

  private def ofKey(certificate: X509Certificate): Array[Byte] = {
    val (_, key) = Der.first(Der.only(certificate.getPublicKey.getEncoded, Der.Sequence), Der.Sequence)
    MessageDigest.getInstance("SHA-1").digest(Der.only(key, Der.BitString).drop(1))
  }

  private def hex(bytes: Array[Byte]): String = HexFormat.of().formatHex(bytes)
}
