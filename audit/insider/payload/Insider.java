package sluice.insider;

import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.RandomAccessFile;
import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.net.DatagramPacket;
import java.net.DatagramSocket;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.URL;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.StandardWatchEventKinds;
import java.nio.file.WatchEvent;
import java.nio.file.WatchService;
import java.nio.file.attribute.FileAttribute;
import java.nio.file.attribute.FileTime;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.SecureRandom;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Collection;
import java.util.Iterator;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509TrustManager;

/**
 * What hostile code tries inside a JVM of its job. Janino compiles this on the cluster, so there are no lambdas.
 *
 * <p>An operation runs on one target after the other until one is reached. It returns what it got, as kind and length
 * and never as content; null means that it got nothing, and an exception that it was refused.
 */
public class Insider {
  static final int MAX_BYTES = 64;
  static final int SOCKET_MILLIS = 8000;
  static final int MAX_TARGETS = 16;
  static final int DEADLINE_MILLIS = 40000;

  static final String ENV = "org.apache.spark.SparkEnv";
  static final String RPC = "org.apache.spark.rpc.RpcEnv";
  static final String ADDRESS = "org.apache.spark.rpc.RpcAddress";
  static final String BLOCKS = "org.apache.spark.storage.BlockManager";
  static final String TRANSFER = "org.apache.spark.network.BlockTransferService";

  /** There is no means to try, or nothing to try it on. */
  static class Untried extends Exception {
    Untried(String why) {
      super(why);
    }
  }

  /** The answer is the outcome and what was seen, separated by a tab; {@code targets} has one in each line. */
  public static String attempt(String operation, String targets) {
    final String[] answer = new String[] {"untried\tit did not end within " + DEADLINE_MILLIS + " ms"};
    final String asked = operation;
    final String[] each = targets.split("\n");
    Thread thread = new Thread() {
      public void run() {
        String found = outcome(asked, each);
        synchronized (answer) {
          answer[0] = found;
        }
      }
    };
    thread.setDaemon(true);
    thread.setContextClassLoader(Thread.currentThread().getContextClassLoader());
    thread.start();
    try {
      thread.join(DEADLINE_MILLIS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
    synchronized (answer) {
      return answer[0];
    }
  }

  static String outcome(String operation, String[] targets) {
    StringBuilder refusals = new StringBuilder();
    StringBuilder untried = new StringBuilder();
    for (int i = 0; i < targets.length && i < MAX_TARGETS; i++) {
      String target = targets[i];
      try {
        String got = one(operation, target);
        if (got != null) {
          return "reached\t" + target + ": " + got;
        }
        note(refusals, target, "nothing came of it");
      } catch (Untried why) {
        note(untried, target, why.getMessage());
      } catch (Throwable error) {
        note(ours(error) ? untried : refusals, target, nameOf(error));
      }
    }
    return refusals.length() > 0 ? "refused\t" + refusals : "untried\t" + untried;
  }

  /** Whether the attempt itself is wrong: no pass. */
  static boolean ours(Throwable error) {
    Throwable cause = error;
    while (cause != null) {
      if (cause instanceof ReflectiveOperationException || cause instanceof LinkageError
          || cause instanceof NullPointerException || cause instanceof ClassCastException) {
        return true;
      }
      cause = cause.getCause() == cause ? null : cause.getCause();
    }
    return false;
  }

  static void note(StringBuilder notes, String target, String text) {
    if (notes.length() < 400) {
      notes.append(notes.length() == 0 ? "" : "; ").append(target).append(": ").append(text);
    }
  }

  static String nameOf(Throwable error) {
    Throwable cause = error;
    while (cause.getCause() != null && cause.getCause() != cause) {
      cause = cause.getCause();
    }
    String text = String.valueOf(cause.getMessage());
    return cause.getClass().getSimpleName() + " " + text.substring(0, Math.min(text.length(), 160)).replace('\n', ' ');
  }

  static String one(String operation, String target) throws Exception {
    int dash = operation.indexOf('-');
    String kind = operation.substring(0, dash);
    String how = operation.substring(dash + 1);
    if (kind.equals("read")) {
      return read(how, target);
    } else if (kind.equals("look")) {
      return look(how, target);
    } else if (kind.equals("write")) {
      return write(how, target);
    } else if (kind.equals("process")) {
      int known = target.indexOf(" @");  // when it started: a box has processes of its own by that number
      return process(how, Long.parseLong(known < 0 ? target : target.substring(0, known)),
          known < 0 ? "" : target.substring(known + 2));
    } else if (kind.equals("self")) {
      return self(how, target);
    } else if (kind.equals("unix")) {
      return unix(how, target);
    } else if (kind.equals("tcp")) {
      return tcp(how, target);
    } else if (kind.equals("leave")) {
      return leave(how, target);
    } else if (kind.equals("spark")) {
      return spark(how, target);
    }
    throw new Untried("no such operation");
  }

  // --- files that it must not read -----------------------------------------------------------------------------

  static Path path(String name) {
    return new File(name).toPath();
  }

  static String bytes(int size) {
    return size > 0 ? size + " bytes or more" : null;
  }

  static String read(String how, String target) throws Exception {
    if (new File(target).isDirectory() && !how.equals("listing")) {
      File[] inside = new File(target).listFiles();
      if (inside == null) {
        throw new IOException("the directory cannot be listed");
      }
      for (int i = 0; i < inside.length && i < 64; i++) {
        if (inside[i].isFile()) {
          return read(how, inside[i].getPath());
        }
      }
      throw new Untried("no file is in it");
    }
    if (how.equals("nio")) {
      return bytes(some(Files.newInputStream(path(target), new OpenOption[0])));
    } else if (how.equals("map")) {
      FileChannel channel = FileChannel.open(path(target), new OpenOption[] {StandardOpenOption.READ});
      try {
        return bytes(channel.map(FileChannel.MapMode.READ_ONLY, 0, Math.min(channel.size(), MAX_BYTES)).remaining());
      } finally {
        channel.close();
      }
    } else if (how.equals("random")) {
      RandomAccessFile file = new RandomAccessFile(target, "r");
      try {
        return bytes(file.read(new byte[MAX_BYTES]));
      } finally {
        file.close();
      }
    } else if (how.equals("url")) {
      return bytes(some(new URL("file://" + target).openStream()));
    } else if (how.equals("hadoop")) {
      return bytes(hadoop(target));
    } else if (how.equals("user")) {
      final String name = target;
      Object size = org.apache.hadoop.security.UserGroupInformation.createRemoteUser("root").doAs(
          new java.security.PrivilegedExceptionAction() {
            public Object run() throws Exception {
              return Integer.valueOf(hadoop(name));
            }
          });
      return bytes(((Integer) size).intValue());
    } else if (how.equals("program")) {
      return bytes(execute(new String[] {"/bin/cat", target}, true).length());
    } else if (how.equals("keystore")) {
      String word = new String(Files.readAllBytes(path(target + ".pass"))).trim();
      KeyStore store = KeyStore.getInstance("PKCS12");
      store.load(new ByteArrayInputStream(Files.readAllBytes(path(target))), word.toCharArray());
      return store.size() + " entries of a key store";
    } else if (how.equals("listing")) {
      String[] names = new File(target).list();
      if (names == null) {
        throw new IOException(new File(target).exists() ? "it cannot be listed" : "there is no such directory");
      }
      return names.length + " names";
    }
    throw new Untried("no such operation");
  }

  static int some(InputStream in) throws Exception {
    try {
      return in.readNBytes(MAX_BYTES).length;
    } finally {
      in.close();
    }
  }

  static int hadoop(String name) throws Exception {
    org.apache.hadoop.fs.Path source = new org.apache.hadoop.fs.Path("file://" + name);
    return some(source.getFileSystem(new org.apache.hadoop.conf.Configuration()).open(source));
  }

  /** Without opening it. */
  static String look(String how, String target) throws Exception {
    if (how.equals("attributes")) {
      Object size = Files.getAttribute(path(target), "unix:size", new LinkOption[0]);
      return "it exists, with " + size + " bytes";
    } else if (how.equals("open")) {
      FileChannel.open(path(target), new OpenOption[] {StandardOpenOption.READ}).close();
      return "it was opened for reading";
    } else if (how.equals("watch")) {
      WatchService service = path(target).getFileSystem().newWatchService();
      try {
        WatchEvent.Kind[] kinds = new WatchEvent.Kind[] {StandardWatchEventKinds.ENTRY_CREATE};
        path(target).register(service, kinds, new WatchEvent.Modifier[0]);
      } finally {
        service.close();
      }
      return "changes in it are told";
    } else if (how.equals("link")) {
      Path link = path(mark(System.getProperty("java.io.tmpdir")));
      try {
        Files.createLink(link, path(target));
      } catch (java.nio.file.FileSystemException error) {
        if (String.valueOf(error.getReason()).indexOf("cross-device") < 0) {
          throw error;
        }
        link = path(mark(System.getProperty("user.dir")));
        Files.createLink(link, path(target));
      }
      Files.delete(link);
      return "a second name for it was made";
    }
    throw new Untried("no such operation");
  }

  // --- what it must not change: everything is taken back, and no content is touched ---------------------------------

  static String mark(String directory) {
    return new File(directory, ".sluice-insider-" + ProcessHandle.current().pid() + "-" + System.nanoTime()).getPath();
  }

  static String write(String how, String target) throws Exception {
    if (how.equals("create")) {
      int known = target.lastIndexOf(" @");  // device and inode outside: a box has directories of its own by these names
      String place = known < 0 ? target : target.substring(0, known);
      if (known >= 0 && !target.substring(known + 2).equals(
          Files.getAttribute(path(place), "unix:dev", new LinkOption[0]) + ":"
          + Files.getAttribute(path(place), "unix:ino", new LinkOption[0]))) {
        throw new NoSuchFileException(place, null, "the one here is another");
      }
      Path made = path(mark(place));
      Files.createFile(made, new FileAttribute[0]);
      Files.delete(made);
      return "a file was made in it";
    } else if (how.equals("hadoop")) {
      org.apache.hadoop.fs.Path made = new org.apache.hadoop.fs.Path("file://" + mark(target));
      org.apache.hadoop.fs.FileSystem system = made.getFileSystem(new org.apache.hadoop.conf.Configuration());
      if (!system.exists(made.getParent())) {
        throw new NoSuchFileException(target);
      }
      system.create(made, false).close();
      system.delete(made, false);
      return "a file was made in it";
    } else if (how.equals("open")) {
      FileChannel.open(path(target), new OpenOption[] {StandardOpenOption.WRITE}).close();
      return "it was opened for writing";
    } else if (how.equals("random")) {
      if (!new File(target).exists()) {
        throw new NoSuchFileException(target);
      }
      new RandomAccessFile(target, "rw").close();
      return "it was opened for reading and writing";
    } else if (how.equals("touch")) {
      FileTime now = Files.getLastModifiedTime(path(target), new LinkOption[0]);
      Files.setLastModifiedTime(path(target), now);
      return "its times can be set";
    } else if (how.equals("mode")) {
      Files.setPosixFilePermissions(path(target), Files.getPosixFilePermissions(path(target), new LinkOption[0]));
      return "its mode can be set";
    } else if (how.equals("jvmlog")) {
      String made = mark(target);
      javax.management.ObjectName name = new javax.management.ObjectName("com.sun.management:type=DiagnosticCommand");
      Object[] arguments = new Object[] {new String[] {"output=" + made, "what=safepoint=error"}};
      java.lang.management.ManagementFactory.getPlatformMBeanServer()
          .invoke(name, "vmLog", arguments, new String[] {"[Ljava.lang.String;"});
      boolean there = new File(made).exists();
      new File(made).delete();
      return there ? "the JVM's own log was opened in it" : null;
    }
    throw new Untried("no such operation");
  }

  // --- processes of others ------------------------------------------------------------------------------------------

  /** The number is from outside, so it may be that of another process here, or of nobody. */
  static void checkForeign(long pid, String started) throws Exception {
    File directory = new File("/proc/" + pid);
    if (!directory.exists()) {
      throw new NoSuchFileException("/proc/" + pid);
    }
    String line = new String(Files.readAllBytes(path("/proc/" + pid + "/cmdline")));
    boolean ours = line.indexOf("sluice") >= 0 || line.indexOf("envoy") >= 0 || line.indexOf("java") >= 0;
    String stat = new String(Files.readAllBytes(path("/proc/" + pid + "/stat")));
    String here = stat.substring(stat.lastIndexOf(')') + 2).split(" ")[19];
    if (pid == ProcessHandle.current().pid() || !ours || !(started.isEmpty() || started.equals(here))) {
      throw new NoSuchFileException("/proc/" + pid + " (another process has that number here)");
    }
  }

  static String process(String how, long pid, String started) throws Exception {
    checkForeign(pid, started);
    String base = "/proc/" + pid;
    if (how.equals("command")) {
      return "its command line is visible";
    } else if (how.equals("environ") || how.equals("maps") || how.equals("auxv") || how.equals("io")) {
      return bytes(some(new FileInputStream(base + "/" + how)));
    } else if (how.equals("memory")) {
      new RandomAccessFile(base + "/mem", "r").close();
      return "its memory was opened";
    } else if (how.equals("poke")) {
      new RandomAccessFile(base + "/mem", "rw").close();
      return "its memory was opened for writing";
    } else if (how.equals("descriptors")) {
      String[] names = new File(base + "/fd").list();
      if (names == null) {
        throw new IOException("its descriptors cannot be listed");
      }
      return names.length + " descriptors";
    } else if (how.equals("root") || how.equals("cwd")) {
      String[] names = new File(base + "/" + how).list();
      if (names == null) {
        throw new IOException("its " + how + " cannot be listed");
      }
      return names.length + " names in its " + how;
    } else if (how.equals("score")) {
      FileChannel.open(path(base + "/oom_score_adj"), new OpenOption[] {StandardOpenOption.WRITE}).close();
      return "its oom_score_adj was opened for writing";
    } else if (how.equals("attach")) {
      Path made = path(base + "/cwd/.attach_pid" + pid);
      Files.createFile(made, new FileAttribute[0]);
      Files.delete(made);
      return "the file that makes a JVM open its attach socket was made";
    } else if (how.equals("handle")) {
      ProcessHandle handle = (ProcessHandle) ProcessHandle.of(pid).orElse(null);
      return handle != null && handle.isAlive() ? "a ProcessHandle of it" : null;
    } else if (how.equals("signal")) {
      execute(new String[] {"/bin/kill", "-0", String.valueOf(pid)}, false);
      return "signal 0 was delivered";
    } else if (how.equals("limits")) {
      execute(new String[] {"/usr/bin/prlimit", "--pid", String.valueOf(pid), "--nofile"}, false);
      return "its limits are told by prlimit";
    } else if (how.equals("enter")) {
      execute(new String[] {"/usr/bin/nsenter", "--target", String.valueOf(pid), "--uts", "/bin/true"}, false);
      return "its namespaces can be entered";
    }
    throw new Untried("no such operation");
  }

  /** What a program prints; raises when it fails. */
  static String execute(String[] command, boolean wanted) throws Exception {
    if (!new File(command[0]).canExecute()) {
      throw new Untried("there is no " + command[0]);
    }
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    process.getOutputStream().close();
    byte[] said = process.getInputStream().readNBytes(4096);
    if (!process.waitFor(5, java.util.concurrent.TimeUnit.SECONDS)) {
      process.destroyForcibly();
      throw new Untried("it did not end");
    }
    String text = new String(said);
    if (process.exitValue() != 0) {
      throw new IOException(command[0] + " failed: " + text.substring(0, Math.min(120, text.length())).trim());
    }
    return text;
  }

  // --- this process itself --------------------------------------------------------------------------------------------

  static String status(String field) throws Exception {
    Iterator lines = Files.readAllLines(path("/proc/self/status")).iterator();
    while (lines.hasNext()) {
      String line = (String) lines.next();
      if (line.startsWith(field + ":")) {
        return line.substring(field.length() + 1).trim();
      }
    }
    throw new Untried("the kernel does not say " + field);
  }

  static String self(String how, String target) throws Exception {
    if (how.equals("capabilities")) {
      String set = status(target);
      return new java.math.BigInteger(set, 16).signum() != 0 ? target + " is " + set : null;
    } else if (how.equals("zero")) {
      String value = status(target);
      return value.equals("0") ? target + " is 0" : null;
    } else if (how.equals("program")) {
      execute(target.split(" "), false);
      return "it succeeded";
    } else if (how.equals("descriptors")) {
      File[] descriptors = new File("/proc/self/fd").listFiles();
      for (int i = 0; descriptors != null && i < descriptors.length; i++) {
        if (descriptors[i].isDirectory() && new File(descriptors[i], "..").list() != null) {
          String to = Files.readSymbolicLink(descriptors[i].toPath()).toString();
          if (!to.startsWith("/proc/")) {
            return "a directory is open: " + to;
          }
        }
      }
      return null;
    } else if (how.equals("node")) {
      String made = mark(System.getProperty("java.io.tmpdir"));
      execute(new String[] {"/usr/bin/mknod", made, "c", "1", "5"}, false);
      boolean there = new File(made).exists();
      new File(made).delete();
      return there ? "a device node was made" : null;
    }
    throw new Untried("no such operation");
  }

  // --- sockets --------------------------------------------------------------------------------------------------------

  static String unix(String how, String target) throws Exception {
    String question = how.equals("http") ? "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" : "\n";
    SocketChannel channel = SocketChannel.open(java.net.UnixDomainSocketAddress.of(target));
    try {
      channel.write(ByteBuffer.wrap(question.getBytes()));
    } finally {
      channel.close();
    }
    return "the connection was accepted";
  }

  static InetSocketAddress address(String target) {
    int colon = target.lastIndexOf(':');
    return new InetSocketAddress(target.substring(0, colon), Integer.parseInt(target.substring(colon + 1)));
  }

  static String tcp(String how, String target) throws Exception {
    if (how.equals("plain") || how.equals("py4j")) {
      String question = how.equals("plain")
          ? "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" : "r\nu\njava.lang.System\ne\n";
      Socket socket = new Socket();
      try {
        socket.connect(address(target), SOCKET_MILLIS);
        socket.setSoTimeout(SOCKET_MILLIS);
        socket.getOutputStream().write(question.getBytes());
        byte[] said = socket.getInputStream().readNBytes(5);
        String text = new String(said, "ISO-8859-1");
        return text.startsWith(how.equals("plain") ? "HTTP/" : "!y") ? "an answer without TLS" : null;
      } finally {
        socket.close();
      }
    }
    boolean http2 = how.endsWith("2");
    return tls(target, how.startsWith("own"), http2);
  }

  /** Says a mark to an outlet of the audit; something only if the outlet answers. */
  static String leave(String how, String target) throws Exception {
    int space = target.indexOf(' ');
    InetSocketAddress to = address(target.substring(0, space));
    byte[] mark = (target.substring(space + 1) + "\n").getBytes("ISO-8859-1");
    byte[] answer = new byte[MAX_BYTES];
    int got = 0;
    if (how.equals("udp")) {
      DatagramSocket socket = new DatagramSocket();
      try {
        socket.setSoTimeout(SOCKET_MILLIS / 4);
        socket.send(new DatagramPacket(mark, mark.length, to));
        DatagramPacket packet = new DatagramPacket(answer, answer.length);
        socket.receive(packet);
        got = packet.getLength();
      } finally {
        socket.close();
      }
    } else if (how.equals("nio")) {
      SocketChannel channel = SocketChannel.open(to);
      try {
        channel.write(ByteBuffer.wrap(mark));
        got = channel.read(ByteBuffer.wrap(answer));
      } finally {
        channel.close();
      }
    } else {
      Socket socket = new Socket();
      try {
        socket.connect(to, SOCKET_MILLIS);
        socket.setSoTimeout(SOCKET_MILLIS);
        socket.getOutputStream().write(mark);
        got = socket.getInputStream().read(answer);
      } finally {
        socket.close();
      }
    }
    String text = new String(answer, 0, Math.max(got, 0), "ISO-8859-1");
    return text.startsWith("SLUICE-OUTLET") ? "the outlet answered" : null;
  }

  /** Whether a listener talks to a client with this job's certificate, or with none; who it is does not matter. */
  static String tls(String target, boolean own, boolean http2) throws Exception {
    KeyManager[] keys = own ? ownKeys() : null;
    SSLContext context = SSLContext.getInstance("TLSv1.3", "SunJSSE");
    context.init(keys, new TrustManager[] {new Believing()}, new SecureRandom());
    Socket raw = new Socket();
    try {
      raw.connect(address(target), SOCKET_MILLIS);
      raw.setSoTimeout(SOCKET_MILLIS);
      SSLSocket socket = (SSLSocket) context.getSocketFactory().createSocket(raw, "localhost", raw.getPort(), true);
      SSLParameters parameters = socket.getSSLParameters();
      parameters.setProtocols(new String[] {"TLSv1.3"});
      parameters.setApplicationProtocols(new String[] {http2 ? "h2" : "http/1.1"});
      socket.setSSLParameters(parameters);
      socket.startHandshake();
      String question = http2 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
          : "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
      OutputStream out = socket.getOutputStream();
      out.write(question.getBytes("ISO-8859-1"));
      out.flush();
      int first = socket.getInputStream().read();
      return first < 0 ? null : "it answered inside TLS";
    } catch (java.net.SocketTimeoutException silence) {
      return "it accepted the handshake and waits";
    } finally {
      raw.close();
    }
  }

  static class Believing implements X509TrustManager {
    public void checkClientTrusted(X509Certificate[] chain, String kind) {}

    public void checkServerTrusted(X509Certificate[] chain, String kind) {}

    public X509Certificate[] getAcceptedIssuers() {
      return new X509Certificate[0];
    }
  }

  /** Where this JVM's agent was told that its identity is. */
  public static String identityDirectory() throws Exception {
    Iterator arguments = java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments().iterator();
    while (arguments.hasNext()) {
      String argument = (String) arguments.next();
      int equals = argument.lastIndexOf('=');
      if (argument.startsWith("-javaagent:") && equals > 0) {
        String rest = argument.substring(equals + 1);
        int comma = rest.indexOf(',');
        return comma < 0 ? rest : rest.substring(0, comma);
      }
    }
    throw new Untried("this JVM has no identity");
  }

  /** A file of this JVM's own identity. */
  public static String ownFile(String name) throws Exception {
    return new String(Files.readAllBytes(path(identityDirectory() + "/" + name)));
  }

  static KeyManager[] ownKeys() throws Exception {
    String directory = identityDirectory();
    String pem = new String(Files.readAllBytes(path(directory + "/key.pem")));
    String body = pem.replaceAll("-----[A-Z ]+-----", "").replaceAll("\\s", "");
    PKCS8EncodedKeySpec spec = new PKCS8EncodedKeySpec(Base64.getDecoder().decode(body));
    PrivateKey key = KeyFactory.getInstance("EC").generatePrivate(spec);
    ByteArrayInputStream certificates = new ByteArrayInputStream(Files.readAllBytes(path(directory + "/chain.pem")));
    Collection chain = CertificateFactory.getInstance("X.509").generateCertificates(certificates);
    KeyStore store = KeyStore.getInstance("PKCS12");
    store.load(null, null);
    store.setKeyEntry("own", key, new char[0], (Certificate[]) chain.toArray(new Certificate[0]));
    KeyManagerFactory factory = KeyManagerFactory.getInstance("PKIX");
    factory.init(store, new char[0]);
    return factory.getKeyManagers();
  }

  // --- Spark's channels of another job --------------------------------------------------------------------------------

  /** By its exact signature: looking at all methods of these classes needs others, which are not among Spark's jars. */
  static Object call(Object on, String in, String name, String result, String[] types, Object[] arguments)
      throws Exception {
    ClassLoader loader = Thread.currentThread().getContextClassLoader();
    Class[] given = new Class[types.length];
    for (int i = 0; i < types.length; i++) {
      given[i] = types[i].equals("int") ? int.class : Class.forName(types[i], true, loader);
    }
    MethodType type = MethodType.methodType(Class.forName(result, true, loader), given);
    MethodHandle method = MethodHandles.publicLookup().findVirtual(Class.forName(in, true, loader), name, type);
    try {
      return method.bindTo(on).invokeWithArguments(arguments);
    } catch (Exception error) {
      throw error;
    } catch (Throwable error) {
      throw new IllegalStateException(error);
    }
  }

  static String spark(String how, String target) throws Exception {
    InetSocketAddress to = address(target);
    ClassLoader loader = Thread.currentThread().getContextClassLoader();
    MethodType none = MethodType.methodType(Class.forName(ENV, true, loader));
    Object env;
    try {
      env = MethodHandles.publicLookup().findStatic(Class.forName(ENV, true, loader), "get", none)
          .invokeWithArguments(new Object[0]);
    } catch (Throwable error) {
      throw new Untried(nameOf(error));
    }
    if (how.equals("endpoint")) {
      Object there = Class.forName(ADDRESS, true, loader).getConstructor(new Class[] {String.class, int.class})
          .newInstance(new Object[] {to.getHostString(), Integer.valueOf(to.getPort())});
      Object ours = call(env, ENV, "rpcEnv", RPC, new String[0], new Object[0]);
      call(ours, RPC, "setupEndpointRef", "org.apache.spark.rpc.RpcEndpointRef",
          new String[] {ADDRESS, "java.lang.String"}, new Object[] {there, "CoarseGrainedScheduler"});
      return "the scheduler of the other job answered";
    } else if (how.equals("block")) {
      Object manager = call(env, ENV, "blockManager", BLOCKS, new String[0], new Object[0]);
      Object service = call(manager, BLOCKS, "blockTransferService", TRANSFER, new String[0], new Object[0]);
      String files = "org.apache.spark.network.shuffle.DownloadFileManager";
      try {
        call(service, TRANSFER, "fetchBlockSync", "org.apache.spark.network.buffer.ManagedBuffer",
            new String[] {"java.lang.String", "int", "java.lang.String", "java.lang.String", files},
            new Object[] {to.getHostString(), Integer.valueOf(to.getPort()), "1", "broadcast_0_piece0", null});
        return "a block came";
      } catch (Exception error) {
        if (nameOf(error).indexOf("BlockNotFound") >= 0) {
          return "the other job looked for the block";
        }
        throw error;
      }
    }
    throw new Untried("no such operation");
  }
}
