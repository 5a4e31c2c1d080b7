package io.sluice.tls

import java.security.{Provider, SecureRandom}
import javax.net.ssl._

/** The security provider of a JVM without an identity. It has the algorithm's name, so that Spark's classes can be
  * warmed up, but creates no engines.
  */
private[tls] final class WaitingProvider extends Provider(WaitingProvider.Name, "1", "no identity yet") {
  putService(new Provider.Service(this, "SSLContext", SluiceProvider.Algorithm, classOf[WaitingContext].getName, null, null) {
    override def newInstance(parameter: AnyRef): AnyRef = new WaitingContext
  })
}

private[tls] object WaitingProvider {
  val Name = "SluiceWaiting"
}

private[tls] final class WaitingContext extends SSLContextSpi {
  private def none: Nothing = throw new IllegalStateException("this process has no identity yet")

  override protected def engineInit(keys: Array[KeyManager], trust: Array[TrustManager], random: SecureRandom): Unit = ()
  override protected def engineGetSocketFactory(): SSLSocketFactory = none
  override protected def engineGetServerSocketFactory(): SSLServerSocketFactory = none
  override protected def engineCreateSSLEngine(): SSLEngine = none
  override protected def engineCreateSSLEngine(host: String, port: Int): SSLEngine = none
  override protected def engineGetServerSessionContext(): SSLSessionContext = null
  override protected def engineGetClientSessionContext(): SSLSessionContext = null
  override protected def engineGetDefaultSSLParameters(): SSLParameters = new SSLParameters
  override protected def engineGetSupportedSSLParameters(): SSLParameters = new SSLParameters
}
