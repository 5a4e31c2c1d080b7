package io.sluice.tls

import java.util.Arrays
import javax.net.ssl.SSLContext

import io.netty.handler.ssl.{ApplicationProtocolConfig, ClientAuth, IdentityCipherSuiteFilter, JdkSslContext, SslContext}

/** TLS of the gRPC servers in this JVM, which are Spark Connect's: the job's identity, and gateways alone may connect.
  *
  * [[Guard]] puts it into every server that is built, so no setting and no code of a session opens one without.
  */
object ConnectTls {

  def server(): SslContext =
    try {
      val context = SSLContext.getInstance(SluiceProvider.ConnectAlgorithm)
      context.init(null, null, null)
      val protocols = new ApplicationProtocolConfig(
        ApplicationProtocolConfig.Protocol.ALPN,
        ApplicationProtocolConfig.SelectorFailureBehavior.NO_ADVERTISE,
        ApplicationProtocolConfig.SelectedListenerFailureBehavior.ACCEPT,
        "h2")
      new JdkSslContext(
        context, false, Arrays.asList(SluiceProvider.Ciphers: _*), IdentityCipherSuiteFilter.INSTANCE, protocols,
        ClientAuth.REQUIRE, SluiceProvider.Protocols.clone(), false)
    } catch {
      case error: Exception => throw new IllegalStateException("no gRPC server without mutual TLS", error)
    }
}
