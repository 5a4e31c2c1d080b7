package io.sluice.tls

import java.io.ByteArrayInputStream
import java.math.BigInteger
import java.security.GeneralSecurityException
import java.security.cert.{CertificateException, CertificateFactory, CRLException, CRLReason, X509Certificate, X509CRL, X509CRLEntry}
import java.util.Date
import javax.security.auth.x500.X500Principal

import scala.jdk.CollectionConverters._

/** A validated CRL: complete, or a delta CRL (RFC 5280, 5.2.4) with the number of its base CRL.
  *
  * @param signer the subject key identifier of the authority that signed it
  */
private[tls] final class RevocationList private (
    val crl: X509CRL, val number: BigInteger, val base: Option[BigInteger], val signer: String) {
  val issuer: X500Principal = crl.getIssuerX500Principal
  def isDelta: Boolean = base.isDefined
  def named: String = s"the ${if (isDelta) "delta" else "revocation"} list number $number of ${issuer.getName}"
}

private[tls] object RevocationList {
  val MaxFileBytes: Int = 4 << 20
  private val MaxLists = 32
  private val Grace = 3600L * 1000 // milliseconds after nextUpdate
  private val Skew = 300L * 1000
  private val NumberOid = "2.5.29.20"
  private val DeltaOid = "2.5.29.27"
  private val Understood = Set("2.5.29.35", NumberOid, DeltaOid)
  private val EntryUnderstood = Set("2.5.29.21", "2.5.29.24")
  private val CrlSignBit = 6
  private val MaxNumberBytes = 20

  def parse(pem: Array[Byte]): Seq[X509CRL] = {
    val found = CertificateFactory.getInstance("X.509").generateCRLs(new ByteArrayInputStream(pem))
    if (found.isEmpty || found.size > MaxLists) throw new CRLException(s"${found.size} revocation lists in one file")
    found.asScala.map(_.asInstanceOf[X509CRL]).toSeq
  }

  /** Validates an untrusted CRL by the rules of `pki/revocation/crl.py`; throws CRLException if it is invalid. */
  def validate(crl: X509CRL, anchors: Seq[X509Certificate], now: Date): RevocationList = {
    val issuer = crl.getIssuerX500Principal.getName
    // 1. Signed by a trusted authority whose key usage has cRLSign.
    val signer = anchors.find(signed(crl, _)).getOrElse {
      throw new CRLException(s"the revocation list of $issuer is not signed by a trusted authority")
    }
    // 2. No unknown critical extension, and a delta CRL indicator must be critical (RFC 5280, 5.2).
    refuseUnknown(Option(crl.getCriticalExtensionOIDs), Understood)
    if (Option(crl.getNonCriticalExtensionOIDs).exists(_.contains(DeltaOid))) {
      throw new CRLException(s"a delta revocation list of $issuer does not say critically that it is one")
    }
    Option(crl.getRevokedCertificates).foreach(_.forEach { entry =>
      refuseUnknown(Option(entry.getCriticalExtensionOIDs), EntryUnderstood)
    })
    // 3. Not expired.
    if (crl.getNextUpdate == null) throw new CRLException(s"the revocation list of $issuer does not say until when it counts")
    if (crl.getThisUpdate.getTime > now.getTime + Skew) throw new CRLException(s"the revocation list of $issuer is from the future")
    if (expired(crl.getNextUpdate, now)) throw new CRLException(s"the revocation list of $issuer expired at ${crl.getNextUpdate.toInstant}")
    val number = numberIn(crl, NumberOid).getOrElse(throw new CRLException("a revocation list has no number"))
    new RevocationList(crl, number, numberIn(crl, DeltaOid), KeyIds.subject(signer))
  }

  /** Whether a CRL with this `nextUpdate` has expired, including the grace period. */
  def expired(nextUpdate: Date, now: Date): Boolean = now.getTime > nextUpdate.getTime + Grace

  /** Whether an entry of a delta CRL removes a certificate from the CRL. Only a certificate on hold can be removed. */
  def isRemoval(entry: X509CRLEntry): Boolean = entry.getRevocationReason == CRLReason.REMOVE_FROM_CRL
  def isOnHold(entry: X509CRLEntry): Boolean = entry.getRevocationReason == CRLReason.CERTIFICATE_HOLD

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

  /** The number in an extension; None if the extension is absent. */
  private def numberIn(crl: X509CRL, oid: String): Option[BigInteger] = Option(crl.getExtensionValue(oid)).map { encoded =>
    val value =
      try Der.only(Der.only(encoded, Der.OctetString), Der.Integer)
      catch { case error: CertificateException => throw new CRLException("the number of a revocation list cannot be read", error) }
    if (value.isEmpty || value.length > MaxNumberBytes || value(0) < 0) {
      throw new CRLException("the number of a revocation list is out of range")
    }
    new BigInteger(value)
  }
}
