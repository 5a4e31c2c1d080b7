package io.sluice.tls

import java.util.Arrays
import javax.net.ssl.SSLContext

import io.netty.handler.ssl.{ApplicationProtocolConfig, ClientAuth, IdentityCipherSuiteFilter, JdkSslContext, SslContext}

/** The TLS context of Spark Connect's gRPC servers: they use the job's identity and accept gateways only.
  *
  * [[Guard]] sets this context in every gRPC server that is built, so no setting and no code of a session can start a
  * server without it.
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
      case error: Exception => throw new IllegalStateException("cannot set up mutual TLS for the gRPC server", error)
    }
}
