package io.sluice.tls

import java.lang.instrument.{ClassFileTransformer, Instrumentation}
import java.security.ProtectionDomain

import org.apache.spark.network.util.{MapConfigProvider, TransportConf}
import org.apache.xbean.asm9.{ClassReader, ClassVisitor, ClassWriter, Label, MethodVisitor, Opcodes}

/** Rewrites Spark's classes so that no configuration of a job can weaken mutual TLS.
  *
  *  - `TransportConf`: the settings that enable TLS for RPC and select its SSLContext become constants.
  *  - `SSLFactory`: configured key and trust stores are not opened (without a trust store it would trust every peer),
  *    and the method that builds Netty contexts without the provider always fails.
  *  - `TransportContext` registers each new channel with [[Connections]].
  *  - gRPC servers (Spark Connect) use [[ConnectTls]].
  *  - Spark's web server does not listen on a port.
  *  - Until the process has its identity, Spark's servers do not listen and its clients do not connect.
  */
private[tls] final class Guard(rewrites: Map[String, Guard.Methods]) extends ClassFileTransformer {

  @volatile private var done = Set.empty[String]

  override def transform(
      loader: ClassLoader, name: String, redefined: Class[_], domain: ProtectionDomain, code: Array[Byte]): Array[Byte] =
    rewrites.get(name) match {
      case None => null // leave the class as it is
      case Some(methods) =>
        // The JVM ignores exceptions of a transformer and loads the class unchanged: halt instead.
        try {
          val rewritten = Guard.rewrite(name, code, methods)
          done += name
          rewritten
        } catch { case error: Throwable => Agent.stop(s"$name could not be guarded", error) }
    }
}

private[tls] object Guard {

  /** A change of one method: takes the visitor that writes the new code and returns the visitor that receives the old
    * code; null drops the old code.
    */
  type Change = MethodVisitor => MethodVisitor

  /** Changes by method name and descriptor. */
  type Methods = Map[String, Change]

  /** Rewrites the guarded classes now. Throws IllegalStateException if one of them is not rewritten.
    *
    * Removes the transformer afterwards, because with a transformer the JVM must read the class file from its jar for
    * each class that it takes from a class archive (CDS). The transformer stays while a guarded class is not on the
    * class path, because the class may be added later.
    */
  def apply(instrumentation: Instrumentation): Unit = {
    val guard = new Guard(Rewrites)
    // Load the transformer's own classes first: the JVM calls it for every class, including those it needs itself.
    guard.transform(null, "", null, null, Array.emptyByteArray)
    instrumentation.addTransformer(guard)
    verify()
    val (here, absent) = Rewrites.keySet.partition(loaded)
    val missed = here -- guard.done // these were loaded before the transformer was added
    if (missed.nonEmpty) throw new IllegalStateException(s"${missed.mkString(", ")} could not be guarded")
    if (absent.isEmpty) instrumentation.removeTransformer(guard)
  }

  /** Loads a class without initializing it, because its logger would configure logging before Spark does. */
  private def loaded(name: String): Boolean =
    try {
      Class.forName(name.replace('/', '.'), false, getClass.getClassLoader)
      true
    } catch { case _: ClassNotFoundException => false }

  /** Replaces the body of a method with straight-line code that ends the method. */
  private def replaced(body: MethodVisitor => Unit): Change = { method =>
    method.visitCode()
    body(method)
    method.visitMaxs(0, 0) // computed
    method.visitEnd()
    null
  }

  private def constant(value: Boolean): Change = replaced { method =>
    method.visitInsn(if (value) Opcodes.ICONST_1 else Opcodes.ICONST_0)
    method.visitInsn(Opcodes.IRETURN)
  }
  private def text(value: String): Change = replaced { method =>
    method.visitLdcInsn(value)
    method.visitInsn(Opcodes.ARETURN)
  }
  private val nothing: Change = replaced { method =>
    method.visitInsn(Opcodes.ACONST_NULL)
    method.visitInsn(Opcodes.ARETURN)
  }
  private def empty(element: String): Change = replaced { method =>
    method.visitInsn(Opcodes.ICONST_0)
    method.visitTypeInsn(Opcodes.ANEWARRAY, element)
    method.visitInsn(Opcodes.ARETURN)
  }
  /** Makes the method always fail: throwing null throws a NullPointerException (JLS 14.18). */
  private val forbidden: Change = replaced { method =>
    method.visitInsn(Opcodes.ACONST_NULL)
    method.visitInsn(Opcodes.ATHROW)
  }
  /** Passes the first argument, a channel, to [[Connections.opened]] before the method returns. */
  private val registerChannel: Change = { method =>
    new MethodVisitor(Opcodes.ASM9, method) {
      override def visitInsn(opcode: Int): Unit = {
        if (opcode == Opcodes.ARETURN) {
          super.visitVarInsn(Opcodes.ALOAD, 1)
          super.visitMethodInsn(
            Opcodes.INVOKESTATIC, "io/sluice/tls/Connections", "opened", "(Lio/netty/channel/Channel;)V", false)
        }
        super.visitInsn(opcode)
      }
    }
  }

  /** Sets [[ConnectTls]] in the builder before it builds, and so overrides any other TLS context. */
  private val secured: Change = { method =>
    new MethodVisitor(Opcodes.ASM9, method) {
      override def visitCode(): Unit = {
        super.visitCode()
        super.visitVarInsn(Opcodes.ALOAD, 0)
        super.visitMethodInsn(
          Opcodes.INVOKESTATIC, "io/sluice/tls/ConnectTls", "server", "()Lio/netty/handler/ssl/SslContext;", false)
        super.visitMethodInsn(
          Opcodes.INVOKEVIRTUAL, GrpcServers, "sslContext", s"(Lio/netty/handler/ssl/SslContext;)L$GrpcServers;", false)
        super.visitInsn(Opcodes.POP)
      }
    }
  }

  /** Replaces Spark's web server with one that has no TCP listener. */
  private val replaceWebServer: Change = replaced { method =>
    method.visitVarInsn(Opcodes.ALOAD, 4) // the configuration
    method.visitVarInsn(Opcodes.ALOAD, 5) // the server's name
    method.visitMethodInsn(
      Opcodes.INVOKESTATIC, "org/apache/spark/ui/SluiceUi", "start",
      "(Lorg/apache/spark/SparkConf;Ljava/lang/String;)Ljava/lang/Object;", false)
    method.visitTypeInsn(Opcodes.CHECKCAST, "org/apache/spark/ui/ServerInfo")
    method.visitInsn(Opcodes.ARETURN)
  }

  /** Runs `first` instead of the method's own code until the process has its identity. */
  private def untilAdmitted(first: MethodVisitor => Unit): Change = { method =>
    new MethodVisitor(Opcodes.ASM9, method) {
      override def visitCode(): Unit = {
        super.visitCode()
        val own = new Label
        super.visitMethodInsn(Opcodes.INVOKESTATIC, "io/sluice/tls/Agent", "admitted", "()Z", false)
        super.visitJumpInsn(Opcodes.IFNE, own)
        first(mv)
        super.visitLabel(own)
        super.visitFrame(Opcodes.F_SAME, 0, null, 0, null)
      }
    }
  }

  /** Spark's servers do not listen and report port 1, which an unprivileged process cannot use. */
  private val preventListening: Change = untilAdmitted { method =>
    method.visitVarInsn(Opcodes.ALOAD, 0)
    method.visitInsn(Opcodes.ICONST_1)
    method.visitFieldInsn(Opcodes.PUTFIELD, Servers, "port", "I")
    method.visitInsn(Opcodes.RETURN)
  }

  private val preventConnecting: Change = untilAdmitted { method =>
    method.visitInsn(Opcodes.ACONST_NULL)
    method.visitInsn(Opcodes.ATHROW)
  }

  private val Servers = "org/apache/spark/network/server/TransportServer"
  private val Clients = "org/apache/spark/network/client/TransportClient"
  private val GrpcServers = "org/sparkproject/connect/grpc/netty/NettyServerBuilder"

  private val Rewrites: Map[String, Methods] = Map(
    "org/apache/spark/network/util/TransportConf" -> Map(
      "sslRpcEnabled()Z" -> constant(true),
      "sslRpcEnabledAndKeysAreValid()Z" -> constant(true),
      "sslRpcOpenSslEnabled()Z" -> constant(false),
      "sslRpcProtocol()Ljava/lang/String;" -> text(SluiceProvider.Algorithm),
      "sslRpcCertChain()Ljava/io/File;" -> nothing,
      "sslRpcPrivateKey()Ljava/io/File;" -> nothing,
      "sslRpcKeyStore()Ljava/io/File;" -> nothing,
      "sslRpcTrustStore()Ljava/io/File;" -> nothing),
    "org/apache/spark/network/ssl/SSLFactory" -> Map(
      "keyManagers(Ljava/io/File;Ljava/lang/String;Ljava/lang/String;)[Ljavax/net/ssl/KeyManager;" ->
        empty("javax/net/ssl/KeyManager"),
      "trustStoreManagers(Ljava/io/File;Ljava/lang/String;ZI)[Ljavax/net/ssl/TrustManager;" ->
        empty("javax/net/ssl/TrustManager"),
      "initNettySslContexts(Lorg/apache/spark/network/ssl/SSLFactory$Builder;)V" -> forbidden),
    "org/apache/spark/network/TransportContext" -> Map(
      ("initializePipeline(Lio/netty/channel/socket/SocketChannel;Lorg/apache/spark/network/server/RpcHandler;Z)" +
        "Lorg/apache/spark/network/server/TransportChannelHandler;") -> registerChannel),
    Servers -> Map("init(Ljava/lang/String;I)V" -> preventListening),
    s"${Clients}Factory" -> Map(s"createClient(Ljava/net/InetSocketAddress;)L$Clients;" -> preventConnecting),
    "org/apache/spark/ui/JettyUtils$" -> Map(
      ("startJettyServer(Ljava/lang/String;ILorg/apache/spark/SSLOptions;Lorg/apache/spark/SparkConf;Ljava/lang/String;I)" +
        "Lorg/apache/spark/ui/ServerInfo;") -> replaceWebServer),
    GrpcServers -> Map(
      "buildTransportServers(Ljava/util/List;)Lorg/sparkproject/connect/grpc/netty/NettyServer;" -> secured))

  /** Verifies that a configuration that disables TLS has no effect. */
  private def verify(): Unit = {
    val hostile = new MapConfigProvider(java.util.Map.of(
      "spark.ssl.rpc.enabled", "false",
      "spark.ssl.rpc.openSslEnabled", "true",
      "spark.ssl.rpc.protocol", "TLSv1.2",
      "spark.ssl.rpc.certChain", "/dev/null",
      "spark.ssl.rpc.privateKey", "/dev/null"))
    val conf = new TransportConf("rpc", hostile)
    val held = conf.sslRpcEnabled && conf.sslRpcEnabledAndKeysAreValid && !conf.sslRpcOpenSslEnabled &&
      conf.sslRpcProtocol == SluiceProvider.Algorithm && conf.sslRpcCertChain == null && conf.sslRpcPrivateKey == null
    if (!held) throw new IllegalStateException("Spark's configuration can still change its TLS")
  }

  private def rewrite(name: String, code: Array[Byte], methods: Methods): Array[Byte] = {
    val reader = new ClassReader(code)
    val writer = new ClassWriter(ClassWriter.COMPUTE_MAXS)
    var changed = Set.empty[String]
    reader.accept(
      new ClassVisitor(Opcodes.ASM9, writer) {
        override def visitMethod(
            access: Int, method: String, descriptor: String, signature: String, thrown: Array[String]): MethodVisitor = {
          val written = super.visitMethod(access, method, descriptor, signature, thrown)
          methods.get(method + descriptor) match {
            case None => written
            case Some(change) =>
              changed += method + descriptor
              change(written)
          }
        }
      },
      0)
    val missing = methods.keySet -- changed
    if (missing.nonEmpty) throw new IllegalStateException(s"$name of this Spark has no ${missing.mkString(", ")}")
    writer.toByteArray
  }
}
