package io.sluice.tls

import java.io.ByteArrayInputStream
import java.math.BigInteger
import java.security.GeneralSecurityException
import java.security.cert.{CertificateException, CertificateFactory, CRLException, X509Certificate, X509CRL}
import java.util.Date
import javax.security.auth.x500.X500Principal

import scala.jdk.CollectionConverters._

/** The revocation lists in use, by issuer; the rules are those of `pki/crl.py`. */
private[tls] final class Revocations private (lists: Map[X500Principal, Revocations.Numbered]) {
  import Revocations._

  /** Throws when `leaf` was revoked. */
  def check(leaf: X509Certificate): Unit =
    lists.get(leaf.getIssuerX500Principal).foreach { list =>
      val entry = list.crl.getRevokedCertificate(leaf.getSerialNumber)
      if (entry != null) {
        val reason = Option(entry.getRevocationReason).map(_.toString).getOrElse("UNSPECIFIED")
        throw new CertificateException(
          s"the certificate with serial ${leaf.getSerialNumber.toString(16)} was revoked at " +
            s"${entry.getRevocationDate.toInstant} ($reason)")
      }
    }

  /** Throws when the list that would tell about `leaf` does not count any more: nobody can tell who is revoked. */
  def checkFresh(leaf: X509Certificate, now: Date): Unit =
    lists.get(leaf.getIssuerX500Principal).foreach { list =>
      if (expired(list.crl, now)) {
        throw new CertificateException(
          s"the revocation list of ${list.crl.getIssuerX500Principal.getName} expired at ${list.crl.getNextUpdate.toInstant}")
      }
    }

  def isEmpty: Boolean = lists.isEmpty

  /** These lists, and the newer ones among those in `pem`, with what was wrong with the others.
    *
    * Throws when `pem` cannot be read at all.
    */
  def updated(pem: Array[Byte], anchors: Seq[X509Certificate], now: Date): (Revocations, Seq[String]) = {
    val (merged, wrong) = parse(pem).foldLeft((lists, Vector.empty[String])) { case ((known, problems), crl) =>
      try (known.updated(crl.getIssuerX500Principal, newer(known, judge(crl, anchors, now))), problems)
      catch { case error: CRLException => (known, problems :+ error.getMessage) }
    }
    (new Revocations(merged), wrong)
  }

  private def newer(known: Map[X500Principal, Numbered], found: Numbered): Numbered = {
    val issuer = found.crl.getIssuerX500Principal
    if (known.get(issuer).exists(_.number.compareTo(found.number) > 0)) {
      throw new CRLException(s"the revocation list number ${found.number} of ${issuer.getName} is older than the one in use")
    }
    found
  }
}

private[tls] object Revocations {
  val Empty = new Revocations(Map.empty)

  val MaxFileBytes: Int = 4 << 20
  private val MaxLists = 32
  private val Grace = 3600L * 1000 // milliseconds after nextUpdate
  private val Skew = 300L * 1000
  private val NumberOid = "2.5.29.20"
  private val Understood = Set("2.5.29.35", NumberOid)
  private val EntryUnderstood = Set("2.5.29.21", "2.5.29.24")
  private val CrlSignBit = 6
  private val IntegerTag: Byte = 2
  private val OctetStringTag: Byte = 4
  private val MaxNumberBytes = 20

  private final case class Numbered(crl: X509CRL, number: BigInteger)

  private def parse(pem: Array[Byte]): Seq[X509CRL] = {
    val found = CertificateFactory.getInstance("X.509").generateCRLs(new ByteArrayInputStream(pem))
    if (found.isEmpty || found.size > MaxLists) throw new CRLException(s"${found.size} revocation lists in one file")
    found.asScala.map(_.asInstanceOf[X509CRL]).toSeq
  }

  private def judge(crl: X509CRL, anchors: Seq[X509Certificate], now: Date): Numbered = {
    val issuer = crl.getIssuerX500Principal.getName
    // 1. Signed by an authority we trust that may sign lists.
    if (!anchors.exists(signed(crl, _))) throw new CRLException(s"the revocation list of $issuer is not signed by a trusted authority")
    // 2. Complete, and nothing critical in it that is not understood (RFC 5280, 5.2).
    refuseUnknown(Option(crl.getCriticalExtensionOIDs), Understood)
    Option(crl.getRevokedCertificates).foreach(_.forEach { entry =>
      refuseUnknown(Option(entry.getCriticalExtensionOIDs), EntryUnderstood)
    })
    // 3. Fresh.
    if (crl.getNextUpdate == null) throw new CRLException(s"the revocation list of $issuer does not say until when it counts")
    if (crl.getThisUpdate.getTime > now.getTime + Skew) throw new CRLException(s"the revocation list of $issuer is from the future")
    if (expired(crl, now)) throw new CRLException(s"the revocation list of $issuer expired at ${crl.getNextUpdate.toInstant}")
    Numbered(crl, number(crl))
  }

  private def signed(crl: X509CRL, anchor: X509Certificate): Boolean =
    anchor.getSubjectX500Principal == crl.getIssuerX500Principal &&
      Option(anchor.getKeyUsage).exists(usage => usage.length > CrlSignBit && usage(CrlSignBit)) && {
        try {
          crl.verify(anchor.getPublicKey)
          true
        } catch { case _: GeneralSecurityException => false }
      }

  private def refuseUnknown(critical: Option[java.util.Set[String]], understood: Set[String]): Unit =
    critical.foreach(_.asScala.find(!understood(_)).foreach { oid =>
      throw new CRLException(s"a revocation list has the critical extension $oid")
    })

  private def expired(crl: X509CRL, now: Date): Boolean = now.getTime > crl.getNextUpdate.getTime + Grace

  /** The CRL number: an INTEGER in an OCTET STRING, both short. */
  private def number(crl: X509CRL): BigInteger = crl.getExtensionValue(NumberOid) match {
    case Array(OctetStringTag, outer, IntegerTag, inner, value @ _*)
        if inner == value.length && outer == inner + 2 && value.nonEmpty && value.length <= MaxNumberBytes =>
      new BigInteger(value.toArray)
    case null => throw new CRLException("a revocation list has no number")
    case _    => throw new CRLException("the number of a revocation list cannot be read")
  }
}
