package io.sluice.tls

import java.security.cert.{CertificateException, X509Certificate}
import java.util.regex.Pattern

import scala.jdk.CollectionConverters._

/** The accepted peers of a connection, as SPIFFE patterns. `*` matches any part of a path. */
private[sluice] final class Peers(patterns: Seq[Pattern]) {

  /** Returns the peer's SPIFFE ID. Throws CertificateException with the reason if `leaf` is not accepted.
    *
    * @param usage the extended key usage that the peer needs for its role in the handshake
    */
  def verify(leaf: X509Certificate, usage: String): String = {
    // 1. Not a CA certificate, and valid for this role in the handshake (RFC 5280, 4.2.1.9 and 4.2.1.12).
    if (leaf.getBasicConstraints != -1) throw new CertificateException("the peer shows a CA certificate as its own")
    val usages = leaf.getExtendedKeyUsage
    if (usages == null || !usages.contains(usage)) {
      throw new CertificateException(s"the peer's certificate is not for this use ($usage)")
    }
    // 2. Exactly one URI SAN (X.509-SVID, section 2), and it matches an accepted pattern.
    val id = Peers.spiffeId(leaf)
    if (!patterns.exists(_.matcher(id).matches())) throw new CertificateException(s"peer $id is not accepted here")
    id
  }
}

private[sluice] object Peers {
  val ServerAuth = "1.3.6.1.5.5.7.3.1"
  val ClientAuth = "1.3.6.1.5.5.7.3.2"

  private val MaxPatterns = 1000
  private val MaxIdCharacters = 2048
  private val UriName = 6 // GeneralName: uniformResourceIdentifier
  private val Id = Pattern.compile("spiffe://[a-z0-9._-]+(/[a-zA-Z0-9._-]+)+")
  private val PatternLine = Pattern.compile("spiffe://[a-z0-9._-]+(/[a-zA-Z0-9._*-]+)+")

  /** Parses a `peers` file: one pattern per line. Throws CertificateException if it is empty or a line is invalid. */
  def parse(text: String): Peers = {
    val lines = text.linesIterator.map(_.trim).filter(line => line.nonEmpty && !line.startsWith("#")).toSeq
    if (lines.isEmpty) throw new CertificateException("the list of accepted peers is empty")
    if (lines.size > MaxPatterns) throw new CertificateException(s"more than $MaxPatterns accepted peers")
    new Peers(lines.map { line =>
      if (!PatternLine.matcher(line).matches()) throw new CertificateException(s"not a SPIFFE pattern: $line")
      Pattern.compile(line.split("\\*", -1).map(Pattern.quote).mkString("[a-zA-Z0-9._/-]+"))
    })
  }

  /** Accepts the gateways in the trust domain of `generation`. */
  def gatewaysOf(generation: Generation): Peers = parse(s"spiffe://${domainOf(generation)}/gateway/*")

  /** Accepts the shuffle workers in the trust domain of `generation`. */
  def shuffleWorkersOf(generation: Generation): Peers = parse(s"spiffe://${domainOf(generation)}/shuffle-worker/*")

  private def domainOf(generation: Generation): String = generation.spiffeId.stripPrefix("spiffe://").takeWhile(_ != '/')

  /** The only SPIFFE ID of a certificate; throws CertificateException if it does not have exactly one. */
  def spiffeId(certificate: X509Certificate): String = {
    val names = Option(certificate.getSubjectAlternativeNames).map(_.asScala.toSeq).getOrElse(Seq.empty)
    val uris = names.map(_.asScala.toSeq).collect { case Seq(kind: Integer, uri: String) if kind == UriName => uri }
    uris match {
      case Seq(id) if id.length <= MaxIdCharacters && Id.matcher(id).matches() => id
      case Seq(_)                                                             => throw new CertificateException("the URI SAN is not a SPIFFE ID")
      case _                                                                  => throw new CertificateException(s"${uris.size} URI SANs, exactly one is needed")
    }
  }
}
