package org.apache.spark.ui

import java.io.{BufferedInputStream, FileInputStream}
import java.util.ServiceLoader
import java.util.zip.GZIPInputStream

import scala.jdk.CollectionConverters._

import org.apache.spark.{SecurityManager, SparkConf}
import org.apache.spark.internal.Logging
import org.apache.spark.scheduler.ReplayListenerBus
import org.apache.spark.status.{AppHistoryServerPlugin, AppStatusListener, AppStatusStore, ElementTrackingStore}
import org.apache.spark.util.Utils
import org.apache.spark.util.kvstore.InMemoryStore

/** Serves Spark's UI of an ended job from its event log, with Spark's own history code: `HistoryUi LOG`.
  *
  * It is a separate program in a sandbox without a network (`runtime/taskmanager/ended_uis/ended_ui.py`), because the
  * job's code controls the content of the log. It answers over the Unix socket of [[SluiceUi]], which exists as soon as
  * the log has been read. It exits when its standard input is closed.
  */
object HistoryUi extends Logging {
  def main(arguments: Array[String]): Unit = {
    endWithInput()
    val conf = new SparkConf()
    val store = replayed(conf, arguments(0))
    val known = store.store.count(classOf[org.apache.spark.status.ApplicationInfoWrapper]) > 0
    if (!known) {
      System.err.println("the event log names no application")
      sys.exit(UnknownApplication)
    }
    val application = store.applicationInfo()
    val attempt = application.attempts.head
    val security = new SecurityManager(conf)
    val ui = SparkUI.create(
      None, store, conf, security, application.name, "", attempt.startTime.getTime, attempt.appSparkVersion)
    ui.setAppId(application.id)
    plugins.foreach(_.setupUI(ui))
    serve(conf, ui, security)
    Thread.currentThread().join()
  }

  private def plugins: Seq[AppHistoryServerPlugin] =
    ServiceLoader.load(classOf[AppHistoryServerPlugin], Utils.getContextOrSparkClassLoader).asScala.toSeq
      .sortBy(_.displayOrder)

  private def replayed(conf: SparkConf, path: String): AppStatusStore = {
    val tracking = new ElementTrackingStore(new InMemoryStore(), conf)
    val listener = new AppStatusListener(tracking, conf, false, None, None)
    val bus = new ReplayListenerBus()
    bus.addListener(listener)
    for (plugin <- plugins; each <- plugin.createListeners(conf, tracking)) bus.addListener(each)
    val input = new GZIPInputStream(new BufferedInputStream(new FileInputStream(path)), ReadBytes)
    try bus.replay(input, "event log", true, ReplayListenerBus.SELECT_ALL_FILTER)
    finally input.close()
    tracking.close(false) // flush the listeners into the store, but keep the store open
    new AppStatusStore(tracking, None, None)
  }

  /** Uses reflection: Spark's jars relocate the Jetty classes, but its signatures have the original names. */
  private def serve(conf: SparkConf, ui: SparkUI, security: SecurityManager): Unit = {
    val server = SluiceUi.inMemory(conf, "history")
    val add = server.getClass.getMethods.find(_.getName == "addHandler").get
    val handlers = classOf[WebUI].getMethod("getHandlers").invoke(ui).asInstanceOf[Seq[AnyRef]]
    handlers.foreach(handler => add.invoke(server, handler, security))
    SluiceUi.listen()
  }

  private def endWithInput(): Unit = {
    val thread = new Thread(() => {
      while (System.in.read() >= 0) {}
      Runtime.getRuntime.halt(0)
    })
    thread.setDaemon(true)
    thread.start()
  }

  private val ReadBytes = 64 << 10
  private val UnknownApplication = 3
}
