package io.sluice.tls

import java.io.{ByteArrayInputStream, IOException}
import java.nio.charset.StandardCharsets.US_ASCII
import java.nio.file.{Files, NoSuchFileException, Path}
import java.nio.file.attribute.PosixFilePermission
import java.security.{GeneralSecurityException, KeyFactory, KeyManagementException, KeyStore, PrivateKey, Signature}
import java.security.cert.{CertificateException, CertificateFactory, X509Certificate}
import java.security.spec.PKCS8EncodedKeySpec
import java.util.{Base64, Date}
import javax.net.ssl.{TrustManagerFactory, X509ExtendedTrustManager}

import scala.jdk.CollectionConverters._

/** One consistent set of identity files. */
private[tls] final class Generation(
    val alias: String,
    val spiffeId: String,
    val key: PrivateKey,
    val chain: Array[X509Certificate],
    val authorities: X509ExtendedTrustManager,
    val anchors: Seq[X509Certificate],
    val peers: Peers)

/** Reads the files of an identity directory and detects changes. */
private[tls] object IdentityFiles {
  private val MaxFileBytes = 1 << 20
  private val MaxChainCertificates = 8
  private val MaxAuthorities = 100
  private val ListsFile = "crl.pem"
  private val Files4 = Seq("key.pem", "chain.pem", "ca.pem", "peers")
  private val CertificateBegin = "-----BEGIN [A-Z0-9 ]*CERTIFICATE-----".r
  private val Armour = "(?s)\\s*-----BEGIN PRIVATE KEY-----\\s+(.+?)-----END PRIVATE KEY-----\\s*".r

  /** A fingerprint of the files' metadata, which changes with every file. Throws if a file is missing. */
  def stampOf(directory: Path): String =
    Files4.map(name => Files.readAttributes(directory.resolve(name), "lastModifiedTime,size,fileKey").toString).mkString

  /** The same for the CRL file; empty if the file does not exist. */
  def listsStampOf(directory: Path): String =
    try Files.readAttributes(directory.resolve(ListsFile), "lastModifiedTime,size,fileKey").toString
    catch { case _: NoSuchFileException => "" }

  def readLists(directory: Path): Array[Byte] = read(directory.resolve(ListsFile), RevocationList.MaxFileBytes)

  /** Reads all files; throws KeyManagementException if they are incomplete or inconsistent. */
  def load(directory: Path): Generation =
    try {
      val chain = certificates(directory.resolve("chain.pem"), MaxChainCertificates)
      val leaf = chain.head
      leaf.checkValidity()
      val spiffeId = Peers.spiffeId(leaf)
      val key = privateKey(directory.resolve("key.pem"), leaf)
      val anchors = usable(certificates(directory.resolve("ca.pem"), MaxAuthorities))
      val authorities = trustManager(anchors)
      val peers = Peers.parse(new String(read(directory.resolve("peers")), US_ASCII))
      val alias = s"sluice-${leaf.getSerialNumber.toString(16)}"
      new Generation(alias, spiffeId, key, chain.toArray, authorities, anchors, peers)
    } catch {
      case error @ (_: GeneralSecurityException | _: IOException | _: IllegalArgumentException) =>
        throw new KeyManagementException(s"no usable identity in $directory", error)
    }

  private def read(path: Path, limit: Int = MaxFileBytes): Array[Byte] = {
    val in = Files.newInputStream(path)
    val content = try in.readNBytes(limit + 1) finally in.close()
    if (content.length > limit) throw new IOException(s"$path is larger than $limit bytes")
    content
  }

  private def certificates(path: Path, limit: Int): Seq[X509Certificate] = {
    val content = read(path)
    val found = CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(content))
    if (found.isEmpty || found.size > limit) throw new KeyManagementException(s"${found.size} certificates in $path")
    // Since Java 25 the factory silently skips a truncated certificate at the end.
    val begun = CertificateBegin.findAllIn(new String(content, US_ASCII)).size
    if (found.size != begun) throw new KeyManagementException(s"${found.size} of $begun certificates in $path are whole")
    found.asScala.map(_.asInstanceOf[X509Certificate]).toSeq
  }

  private def privateKey(path: Path, leaf: X509Certificate): PrivateKey = {
    val open = Files.getPosixFilePermissions(path).asScala.filterNot(OwnerPermissions.contains)
    if (open.nonEmpty) throw new KeyManagementException(s"others than the owner can use $path: chmod 600")
    val encoded = new String(read(path), US_ASCII) match {
      case Armour(body) => Base64.getMimeDecoder.decode(body)
      case _            => throw new KeyManagementException(s"$path is not a PKCS#8 key in PEM")
    }
    val key = KeyFactory.getInstance(leaf.getPublicKey.getAlgorithm).generatePrivate(new PKCS8EncodedKeySpec(encoded))
    if (!belongTogether(key, leaf)) throw new KeyManagementException(s"$path is not the key of the certificate")
    key
  }

  /** Whether a signature by `key` verifies with the certificate. Detects a half-replaced pair. */
  private def belongTogether(key: PrivateKey, leaf: X509Certificate): Boolean = {
    val algorithm = leaf.getPublicKey.getAlgorithm match {
      case "EC"              => "SHA256withECDSA"
      case "RSA"             => "SHA256withRSA"
      case "EdDSA" | "Ed25519" => "Ed25519"
      case other             => throw new KeyManagementException(s"keys of type $other are not supported")
    }
    val probe = "sluice".getBytes(US_ASCII)
    val signature = Signature.getInstance(algorithm)
    signature.initSign(key)
    signature.update(probe)
    val signed = signature.sign()
    signature.initVerify(leaf.getPublicKey)
    signature.update(probe)
    signature.verify(signed)
  }

  /** Returns the authorities that have not expired. An expired one next to its successor is no error. */
  private def usable(authorities: Seq[X509Certificate]): Seq[X509Certificate] = {
    authorities.find(_.getBasicConstraints == -1).foreach { other =>
      throw new KeyManagementException(s"${other.getSubjectX500Principal.getName} is not a CA")
    }
    val now = new Date()
    val left = authorities.filterNot(each => now.after(each.getNotAfter))
    if (left.isEmpty) throw new KeyManagementException("every authority has expired")
    left
  }

  private def trustManager(anchors: Seq[X509Certificate]): X509ExtendedTrustManager = {
    val store = KeyStore.getInstance("PKCS12")
    store.load(null, null)
    anchors.zipWithIndex.foreach { case (anchor, index) =>
      store.setCertificateEntry(s"authority-$index", anchor)
    }
    val factory = TrustManagerFactory.getInstance("PKIX", "SunJSSE")
    factory.init(store)
    factory.getTrustManagers.head.asInstanceOf[X509ExtendedTrustManager]
  }

  private val OwnerPermissions =
    Set(PosixFilePermission.OWNER_READ, PosixFilePermission.OWNER_WRITE, PosixFilePermission.OWNER_EXECUTE)
}
