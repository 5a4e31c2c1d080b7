package io.sluice.tls

import java.math.BigInteger
import java.security.cert.{CertificateException, CRLException, X509Certificate, X509CRLEntry}
import java.util.Date
import javax.security.auth.x500.X500Principal

import scala.jdk.CollectionConverters._
import scala.util.Try

/** The CRLs in use, by issuer. Follows the rules of `pki/revocation/crl.py`. */
private[tls] final class Revocations private (lists: Map[X500Principal, Revocations.InUse]) {
  import Revocations._

  /** Throws CertificateException if `leaf` was revoked. */
  def check(leaf: X509Certificate): Unit =
    lists.get(leaf.getIssuerX500Principal).flatMap(_.entry(leaf.getSerialNumber)).foreach { entry =>
      val reason = Option(entry.getRevocationReason).map(_.toString).getOrElse("UNSPECIFIED")
      throw new CertificateException(
        s"the certificate with serial ${leaf.getSerialNumber.toString(16)} was revoked at " +
          s"${entry.getRevocationDate.toInstant} ($reason)")
    }

  /** Throws CertificateException if the CRL of the issuer of `leaf` has expired: its revocation status is unknown. */
  def checkFresh(leaf: X509Certificate, now: Date): Unit =
    lists.get(leaf.getIssuerX500Principal).foreach { list =>
      if (RevocationList.expired(list.nextUpdate, now)) {
        throw new CertificateException(
          s"the revocation list of ${leaf.getIssuerX500Principal.getName} expired at ${list.nextUpdate.toInstant}")
      }
    }

  def isEmpty: Boolean = lists.isEmpty

  /** The number of each CRL by its issuer's key identifier. */
  def numbers: Map[String, BigInteger] = lists.values.map(list => list.newest.signer -> list.newest.number).toMap

  /** Returns these CRLs updated with the newer ones in `pem`, and the reasons why others were not accepted.
    *
    * Throws CRLException if `pem` cannot be parsed.
    */
  def updated(pem: Array[Byte], anchors: Seq[X509Certificate], now: Date): (Revocations, Seq[String]) = {
    val validated = RevocationList.parse(pem).map(crl => Try(RevocationList.validate(crl, anchors, now)))
    // Complete CRLs first: a delta CRL may precede its base in the file.
    val good = validated.flatMap(_.toOption).sortBy(list => (list.isDelta, list.number))
    val newest = good.groupMapReduce(_.issuer)(_.number)(_.max(_))
    val (merged, refused) = good.foldLeft((lists, Vector.empty[String])) { case ((known, problems), list) =>
      try (known.updated(list.issuer, merge(known.get(list.issuer), list, newest(list.issuer))), problems)
      catch { case error: CRLException => (known, problems :+ error.getMessage) }
    }
    (new Revocations(merged), validated.flatMap(_.failed.toOption).map(_.toString) ++ refused)
  }
}

private[tls] object Revocations {
  val Empty = new Revocations(Map.empty)

  /** A complete CRL together with the changes of later delta CRLs.
    *
    * It is valid until the first of them expires, and has the number of the newest one (RFC 5280, 5.2.4).
    */
  private final class InUse(
      complete: RevocationList, val newest: RevocationList, val nextUpdate: Date, changes: Map[BigInteger, X509CRLEntry]) {
    def entry(serial: BigInteger): Option[X509CRLEntry] =
      changes.get(serial).orElse(Option(complete.crl.getRevokedCertificate(serial))).filterNot(RevocationList.isRemoval)

    def changedBy(delta: RevocationList): InUse = {
      val entries: Iterable[X509CRLEntry] = Option(delta.crl.getRevokedCertificates).toSeq.flatMap(_.asScala)
      // A revoked certificate stays revoked, unless it was on hold.
      val counting = entries.filter { each =>
        !RevocationList.isRemoval(each) || entry(each.getSerialNumber).exists(RevocationList.isOnHold)
      }
      val earlier = if (nextUpdate.before(delta.crl.getNextUpdate)) nextUpdate else delta.crl.getNextUpdate
      new InUse(complete, delta, earlier, changes ++ counting.map(each => each.getSerialNumber -> each))
    }
  }

  /** Merges the CRL `found` into `known`. `newest` is the highest CRL number of this issuer in the file. */
  private def merge(known: Option[InUse], found: RevocationList, newest: BigInteger): InUse = (known, found.base) match {
    case (None, Some(_)) => throw new CRLException(s"${found.named} has no complete list to build on")
    case (None, None)    => whole(found)
    // A file that reaches the number in use may consist of other base and delta CRLs: skip the older ones.
    case (Some(list), _) if found.number.compareTo(list.newest.number) < 0 =>
      if (newest.compareTo(list.newest.number) < 0) throw older(found) else list
    case (Some(_), None) => whole(found)
    case (Some(list), Some(base)) =>
      if (found.number == list.newest.number) list
      else if (base.compareTo(list.newest.number) > 0) {
        throw new CRLException(s"${found.named} builds on number $base, and the one in use is number ${list.newest.number}")
      } else list.changedBy(found)
  }

  private def whole(list: RevocationList) = new InUse(list, list, list.crl.getNextUpdate, Map.empty)

  private def older(found: RevocationList) = new CRLException(s"${found.named} is older than the one in use")
}
