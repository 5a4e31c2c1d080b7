import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;

/** Uses each kind of socket of a JVM and prints one line for each. */
public class Peers {
  public static void main(String[] arguments) throws Exception {
    int allowed = Integer.parseInt(arguments[0]);
    int assigned = Integer.parseInt(arguments[1]);
    try (Socket socket = new Socket("127.0.0.1", allowed)) {
      System.out.println("blocking " + talk(socket));
    }
    try (Socket socket = new Socket()) {
      socket.connect(new InetSocketAddress("api.example.com", 443), 20000);
      System.out.println("named " + talk(socket));
    }
    try (Selector selector = Selector.open(); SocketChannel channel = SocketChannel.open()) {
      channel.configureBlocking(false);
      SelectionKey key = channel.register(selector, 0);
      if (!channel.connect(new InetSocketAddress("127.0.0.1", allowed))) {
        key.interestOps(SelectionKey.OP_CONNECT);
        selector.select(20000);
        channel.finishConnect();
      }
      channel.write(ByteBuffer.wrap("selected".getBytes(StandardCharsets.UTF_8)));
      key.interestOps(SelectionKey.OP_READ);
      selector.select(20000);
      ByteBuffer answer = ByteBuffer.allocate(100);
      channel.read(answer);
      System.out.println("selector " + text(answer.array(), answer.position()) + channel.getRemoteAddress());
    }
    try (ServerSocket own = new ServerSocket(0, 5, InetAddress.getLoopbackAddress());
        Socket socket = new Socket("localhost", own.getLocalPort());
        Socket accepted = own.accept()) {
      System.out.println("inside " + accepted.getInetAddress().isLoopbackAddress());
    }
    for (String host : new String[] {"192.0.2.1", "denied.example"}) {
      try (Socket socket = new Socket(host, 80)) {
        System.out.println("reached " + host);
      } catch (java.net.SocketException error) {
        System.out.println("refused " + host);
      } catch (java.net.UnknownHostException error) {
        System.out.println("unknown " + host);
      }
    }
    try (Selector selector = Selector.open(); ServerSocketChannel server = ServerSocketChannel.open()) {
      server.bind(new InetSocketAddress("127.0.0.1", assigned));
      server.configureBlocking(false);
      server.register(selector, SelectionKey.OP_ACCEPT);
      selector.select(20000);
      try (SocketChannel accepted = server.accept()) {
        accepted.write(ByteBuffer.wrap("from java".getBytes(StandardCharsets.UTF_8)));
        System.out.println("accepted " + accepted.getLocalAddress());
      }
    }
  }

  private static String talk(Socket socket) throws java.io.IOException {
    socket.getOutputStream().write("hello".getBytes(StandardCharsets.UTF_8));
    byte[] answer = new byte[100];
    return text(answer, socket.getInputStream().read(answer)) + socket.getRemoteSocketAddress();
  }

  private static String text(byte[] bytes, int length) {
    return new String(bytes, 0, length, StandardCharsets.UTF_8);
  }
}
