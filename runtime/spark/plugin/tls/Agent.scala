package io.sluice.tls

import java.lang.instrument.Instrumentation
import java.nio.file.{Path, Paths}
import java.security.Security
import javax.net.ssl.SSLContext

import scala.util.control.NonFatal

/** `-javaagent:plugin.jar=IDENTITY_DIRECTORY`: makes every channel of the Spark in this JVM mutual TLS, or stops it.
  *
  * What it reports goes into the directory `sluice.reports`, for a JVM in a sandbox cannot write beside its identity.
  *
  * Runs before `main`: loads the identity, registers the security provider, rewrites the classes through which Spark's
  * configuration could bypass it, and checks that all of this holds. Whatever goes wrong halts the JVM; there is
  * no state in which Spark runs on without it.
  *
  * `-javaagent:plugin.jar=wait:IDENTITY_DIRECTORY`: the same but for the identity, which comes with the job that this JVM
  * waits for. Until then the provider makes no channel, and Spark neither listens nor connects.
  */
object Agent {

  /** Exit code of a JVM that was stopped here (`IDENTITY_EXIT_CODE` in `runtime/spark/jvm/command.py`). */
  val ExitCode = 97

  /** Those of RFC 8446 (4.2.3) without SHA-1; the `rsa_pkcs1` ones are for certificates alone there. */
  private val SignatureSchemes = Seq(
    "ecdsa_secp256r1_sha256", "ecdsa_secp384r1_sha384", "ecdsa_secp521r1_sha512", "ed25519", "rsa_pss_rsae_sha256",
    "rsa_pss_rsae_sha384", "rsa_pss_rsae_sha512", "rsa_pss_pss_sha256", "rsa_pss_pss_sha384", "rsa_pss_pss_sha512",
    "rsa_pkcs1_sha256", "rsa_pkcs1_sha384", "rsa_pkcs1_sha512").mkString(",")

  /** Spark's settings as the launcher gave them on the command line, before any code of the job ran. */
  @volatile private var settings: Map[String, String] = Map.empty

  def launcherSettings: Map[String, String] = settings

  /** Of an argument: the identity will come later, while the JVM waits for its job. */
  private val Waits = "wait:"

  /** Where the identity of a JVM that waits will be; empty: none is awaited (any more). */
  private var awaited = ""

  @volatile private var known = false

  /** Whether this process has its identity; until then Spark neither listens nor connects (see [[Guard]]). */
  def admitted: Boolean = known

  def premain(arguments: String, instrumentation: Instrumentation): Unit =
    try {
      if (arguments == null || arguments.isEmpty) throw new IllegalArgumentException("no identity directory was given")
      // Before the JDK's TLS is loaded, which would sign handshakes with SHA-1 for whoever asks for it.
      Seq("server", "client").foreach(end => System.setProperty(s"jdk.tls.$end.SignatureSchemes", SignatureSchemes))
      val engines = Engines.named(System.getProperty("sluice.tls.engine", "jdk"))
      if (arguments.startsWith(Waits)) {
        awaited = arguments.drop(Waits.length)
        Security.addProvider(new WaitingProvider)
        Guard.apply(instrumentation)
      } else {
        take(arguments, engines)
        Guard.apply(instrumentation)
        begin(arguments)
      }
    } catch {
      case error: Throwable => stop("this process cannot be given its identity", error)
    }

  /** The job of a JVM that has waited has come: its identity is where the command line has said, its settings are set. */
  private[sluice] def admit(): Unit = synchronized {
    try {
      if (awaited.isEmpty) throw new IllegalStateException("it does not wait for one")
      val directory = awaited
      awaited = ""
      Security.removeProvider(WaitingProvider.Name)
      take(directory, Engines.named(System.getProperty("sluice.tls.engine", "jdk")))
      begin(directory)
    } catch {
      case error: Throwable => stop("this process cannot be given its identity", error)
    }
  }

  private var identity: Identity = _

  private def take(arguments: String, engines: Engines): Unit = {
    takeSecret()
    settings = sparkProperties()
    identity = new Identity(Paths.get(arguments))
    val evidence = new Evidence(reports.getOrElse(Paths.get(arguments)))
    Security.addProvider(new SluiceProvider(identity, engines, evidence))
    ShuffleTls.prepare(identity, engines, evidence)
    known = true
  }

  /** Executors look for it in the environment themselves; of a driver Spark wants it as a setting. */
  private def takeSecret(): Unit =
    if (System.getProperty("spark.master") != null) {
      Option(System.getenv("_SPARK_AUTH_SECRET")).foreach(System.setProperty("spark.authenticate.secret", _))
    }

  private def begin(arguments: String): Unit = {
    SSLContext.getInstance(SluiceProvider.Algorithm).init(null, null, null)
    UserName.provide()
    new Watcher(identity, reports.fold(UseReport.beside(Paths.get(arguments)))(UseReport.in)).start()
  }

  private def reports: Option[Path] = Option(System.getProperty("sluice.reports")).map(Paths.get(_))

  /** Halts at once: no shutdown hook may still talk to anybody. */
  def stop(what: String, error: Throwable): Nothing = {
    try {
      System.err.println(s"sluice: $what: ${describe(error)}")
      System.err.flush()
    } finally Runtime.getRuntime.halt(ExitCode)
    throw new IllegalStateException(what, error)
  }

  private def describe(error: Throwable): String =
    Iterator.iterate(error)(_.getCause).takeWhile(_ != null).take(5).mkString(", because of ")

  private def sparkProperties(): Map[String, String] = {
    val properties = System.getProperties
    val found = Map.newBuilder[String, String]
    properties.stringPropertyNames.forEach { key =>
      if (key.startsWith("spark.")) found += key -> properties.getProperty(key)
    }
    found.result()
  }
}

/** What is worth a line in the process's log: reloads, refusals. Never a secret. */
private[tls] object Log {
  def line(text: String): Unit =
    try System.err.println(s"sluice: $text")
    catch { case NonFatal(_) => () }
}
