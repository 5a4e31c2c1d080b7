package io.sluice.tls

import java.io.{ByteArrayInputStream, IOException}
import java.nio.charset.StandardCharsets.US_ASCII
import java.nio.file.{Files, NoSuchFileException, Path}
import java.nio.file.attribute.PosixFilePermission
import java.security.{GeneralSecurityException, KeyFactory, KeyManagementException, KeyStore, PrivateKey, Signature}
import java.security.cert.{CertificateFactory, CRLException, X509Certificate}
import java.security.spec.PKCS8EncodedKeySpec
import java.util.{Base64, Date}
import javax.net.ssl.{TrustManagerFactory, X509ExtendedTrustManager}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

/** One consistent set of identity files. */
private[tls] final class Generation(
    val alias: String,
    val key: PrivateKey,
    val chain: Array[X509Certificate],
    val authorities: X509ExtendedTrustManager,
    val anchors: Seq[X509Certificate],
    val peers: Peers)

/** An identity directory (`key.pem`, `chain.pem`, `ca.pem`, `peers`, `crl.pem`), read again when its files change.
  *
  * The first load must succeed. Later, a set that does not fit together (half of a replacement is written) or cannot
  * be read leaves the previous generation in place and is tried again. The revocation lists change by themselves:
  * a file of them that is damaged, foreign, expired or older leaves those in use in place.
  */
private[tls] final class Identity(directory: Path) {
  import Identity._

  @volatile private var generation = load(directory)
  @volatile private var stamp = stampOf(directory)
  @volatile private var lists = Revocations.Empty
  private var listsSeen: (String, Generation) = ("", generation)
  reloadLists() match {
    case Some(error) if lists.isEmpty => throw new KeyManagementException(s"no usable revocation list in $directory", error)
    case _                            => ()
  }
  @volatile private var lookedAt = System.nanoTime()

  /** The newest complete generation; looks at the files at most once per [[LookInterval]]. */
  def current: Generation = {
    look()
    generation
  }

  /** The newest good revocation lists; the object changes with their content. */
  def revocations: Revocations = {
    look()
    lists
  }

  private def look(): Unit =
    if (System.nanoTime() - lookedAt > LookInterval) synchronized {
      if (System.nanoTime() - lookedAt > LookInterval) {
        lookedAt = System.nanoTime()
        reload()
        reloadLists()
      }
    }

  /** Takes over what is newer in a file not seen before, and says what was wrong with it. */
  private def reloadLists(): Option[Throwable] = {
    val seen = (listsStampOf(directory), generation)
    // A file that went away changes nothing: what is revoked stays revoked.
    if (seen == listsSeen || seen._1.isEmpty) None
    else {
      listsSeen = seen
      val wrong =
        try {
          val pem = read(directory.resolve(ListsFile), Revocations.MaxFileBytes)
          val (newer, problems) = lists.updated(pem, generation.anchors, new Date())
          lists = newer
          problems.headOption.map(new CRLException(_))
        } catch { case NonFatal(error) => Some(error) }
      wrong.foreach(error => Log.line(s"revocation lists in $directory: not taken, the previous ones stay: $error"))
      wrong
    }
  }

  private def reload(): Unit =
    try {
      val now = stampOf(directory)
      if (now != stamp) {
        val next = load(directory)
        // Files that changed while they were read are read again at the next look.
        if (stampOf(directory) == now) {
          generation = next
          stamp = now
          Log.line(s"identity in $directory was replaced")
        }
      }
    } catch {
      case NonFatal(error) => Log.line(s"identity in $directory is incomplete, the previous one stays: $error")
    }
}

private[tls] object Identity {
  private val LookInterval = 1000L * 1000 * 1000 // nanoseconds
  private val MaxFileBytes = 1 << 20
  private val MaxChainCertificates = 8
  private val MaxAuthorities = 100
  private val ListsFile = "crl.pem"
  private val Files4 = Seq("key.pem", "chain.pem", "ca.pem", "peers")
  private val Armour = "(?s)\\s*-----BEGIN PRIVATE KEY-----\\s+(.+?)-----END PRIVATE KEY-----\\s*".r

  private def stampOf(directory: Path): String =
    Files4.map(name => Files.readAttributes(directory.resolve(name), "lastModifiedTime,size,fileKey").toString).mkString

  /** Empty when there is none. */
  private def listsStampOf(directory: Path): String =
    try Files.readAttributes(directory.resolve(ListsFile), "lastModifiedTime,size,fileKey").toString
    catch { case _: NoSuchFileException => "" }

  private def load(directory: Path): Generation =
    try {
      val chain = certificates(directory.resolve("chain.pem"), MaxChainCertificates)
      val leaf = chain.head
      leaf.checkValidity()
      Peers.spiffeId(leaf)
      val key = privateKey(directory.resolve("key.pem"), leaf)
      val anchors = certificates(directory.resolve("ca.pem"), MaxAuthorities)
      val authorities = trustManager(anchors)
      val peers = Peers.parse(new String(read(directory.resolve("peers")), US_ASCII))
      new Generation(s"sluice-${leaf.getSerialNumber.toString(16)}", key, chain.toArray, authorities, anchors, peers)
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
    val found = CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(read(path)))
    if (found.isEmpty || found.size > limit) throw new KeyManagementException(s"${found.size} certificates in $path")
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

  /** Whether a signature by `key` verifies with the certificate: guards against a half-replaced pair. */
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

  private def trustManager(anchors: Seq[X509Certificate]): X509ExtendedTrustManager = {
    val store = KeyStore.getInstance("PKCS12")
    store.load(null, null)
    anchors.zipWithIndex.foreach { case (anchor, index) =>
      anchor.checkValidity()
      store.setCertificateEntry(s"authority-$index", anchor)
    }
    val factory = TrustManagerFactory.getInstance("PKIX", "SunJSSE")
    factory.init(store)
    factory.getTrustManagers.head.asInstanceOf[X509ExtendedTrustManager]
  }

  private val OwnerPermissions =
    Set(PosixFilePermission.OWNER_READ, PosixFilePermission.OWNER_WRITE, PosixFilePermission.OWNER_EXECUTE)
}
