package io.sluice.tls

import java.lang.instrument.Instrumentation
import java.nio.file.{Path, Paths}
import java.security.Security
import javax.net.ssl.SSLContext

import scala.util.control.NonFatal

/** Enforces mutual TLS on every Spark channel of this JVM, or halts the JVM:
  * `-javaagent:plugin.jar=IDENTITY_DIRECTORY`.
  *
  * Runs before `main`: loads the identity, registers the security provider, rewrites the classes through which Spark's
  * configuration could bypass the provider, and verifies the result. Any error halts the JVM: Spark never runs without
  * the provider.
  *
  * Reports go to the directory in the property `sluice.reports`, because a JVM in a sandbox cannot write next to its
  * identity.
  *
  * With `-javaagent:plugin.jar=wait:IDENTITY_DIRECTORY` the identity is loaded later, with the job that this JVM waits
  * for. Until then the provider creates no channel, and Spark neither listens nor connects.
  */
object Agent {

  /** Exit code of a JVM that this agent halted (`IDENTITY_EXIT_CODE` in `runtime/spark/jvm/command.py`). */
  val ExitCode = 97

  /** The signature schemes of RFC 8446 (4.2.3) without SHA-1. The `rsa_pkcs1` schemes are for certificates only. */
  private val SignatureSchemes = Seq(
    "ecdsa_secp256r1_sha256", "ecdsa_secp384r1_sha384", "ecdsa_secp521r1_sha512", "ed25519", "rsa_pss_rsae_sha256",
    "rsa_pss_rsae_sha384", "rsa_pss_rsae_sha512", "rsa_pss_pss_sha256", "rsa_pss_pss_sha384", "rsa_pss_pss_sha512",
    "rsa_pkcs1_sha256", "rsa_pkcs1_sha384", "rsa_pkcs1_sha512").mkString(",")

  /** Spark's settings from the launcher's command line, read before any code of the job runs. */
  @volatile private var settings: Map[String, String] = Map.empty

  def launcherSettings: Map[String, String] = settings

  /** Prefix of the agent's argument: the identity is loaded later, with the job that the JVM waits for. */
  private val Waits = "wait:"

  /** The identity directory of a waiting JVM; empty if this JVM does not wait for an identity. */
  private var awaited = ""

  @volatile private var known = false

  /** Whether this process has its identity. Until then Spark neither listens nor connects (see [[Guard]]). */
  def admitted: Boolean = known

  def premain(arguments: String, instrumentation: Instrumentation): Unit =
    try {
      if (arguments == null || arguments.isEmpty) throw new IllegalArgumentException("no identity directory is given")
      // Set this before the JDK's TLS is loaded: by default it signs handshakes with SHA-1 if the peer requests it.
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

  /** Loads the identity of a waiting JVM from the directory given on the command line.
    *
    * The job must have arrived, and its settings must be set as system properties.
    */
  private[sluice] def loadAwaitedIdentity(): Unit = synchronized {
    try {
      if (awaited.isEmpty) throw new IllegalStateException("this JVM does not wait for an identity")
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

  /** Sets the driver's authentication secret. Executors read it from the environment, but a driver needs the setting.
    */
  private def takeSecret(): Unit =
    if (System.getProperty("spark.master") != null) {
      Option(System.getenv("_SPARK_AUTH_SECRET")).foreach(System.setProperty("spark.authenticate.secret", _))
    }

  private def begin(arguments: String): Unit = {
    SSLContext.getInstance(SluiceProvider.Algorithm).init(null, null, null)
    UserName.provide()
    new Watcher(identity, reports.fold(UseReport.forIdentity(Paths.get(arguments)))(UseReport.in)).start()
  }

  private def reports: Option[Path] = Option(System.getProperty("sluice.reports")).map(Paths.get(_))

  /** Halts the JVM at once, without shutdown hooks, which could still open connections. */
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

/** Writes reloads and refusals to the process's log. Never pass a secret to it. */
private[tls] object Log {
  def line(text: String): Unit =
    try System.err.println(s"sluice: $text")
    catch { case NonFatal(_) => () }
}
