package org.apache.spark.shuffle.sluice

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.{ShuffleDependency, SparkConf, SparkException, TaskContext}
import org.apache.spark.internal.config
import org.apache.spark.scheduler.{SparkListener, SparkListenerJobEnd}
import org.apache.spark.shuffle._
import org.apache.spark.shuffle.streaming.{StreamingShuffleHandle, StreamingShuffleManager}

/** The handle of a shuffle that reduce tasks read from the workers while map tasks write it.
  *
  * @param writers the number of map tasks
  */
private[spark] final class PipelinedHandle[K, V, C](
    shuffleId: Int, dependency: ShuffleDependency[K, V, C], private[sluice] val allocation: Allocation, val writers: Int)
    extends StreamingShuffleHandle[K, V, C](shuffleId, dependency) {

  /** The workers that store the data of a map task, in the order in which its readers try them. */
  private[sluice] def workersOf(writer: Int): Seq[WorkerAddress] = {
    val workers = allocation.workers.toSeq
    Seq.tabulate(math.min(allocation.replicas, workers.size))(n => workers((writer + n) % workers.size))
  }
}

/** The shuffle manager for Structured Streaming's real-time mode (`spark.shuffle.manager.incremental`).
  *
  * It uses the shuffle workers instead of a listener in each executor: a map task commits its rows every few
  * milliseconds, and reduce tasks follow these commits. It overrides all methods of Spark's own manager, but is a
  * subclass of it, because only then does Spark create what its scheduler needs for a pipelined shuffle.
  */
private[spark] final class SluicePipelinedManager(conf: SparkConf, isDriver: Boolean) extends StreamingShuffleManager {
  private lazy val settings = new PipelinedSettings(conf)

  override def registerShuffle[K, V, C](shuffleId: Int, dependency: ShuffleDependency[K, V, C]): ShuffleHandle = {
    val why =
      if (!RowSerializer.supports(dependency.serializer)) Some("carry rows of SQL only")
      else if (dependency.aggregator.nonEmpty || dependency.keyOrdering.nonEmpty) Some("neither aggregate nor sort")
      else if (conf.get(config.IO_ENCRYPTION_ENABLED)) Some("are encrypted by TLS alone: unset spark.io.encryption.enabled")
      else None
    why.foreach(text => throw new SparkException(s"shuffles in real-time mode $text"))
    val allocation = ShuffleService.current.register(shuffleId, dependency.partitioner.numPartitions)
    PipelinedShuffles.registered(shuffleId)
    new PipelinedHandle(shuffleId, dependency, allocation, dependency.rdd.getNumPartitions)
  }

  override def getWriter[K, V](
      handle: ShuffleHandle, map: Long, context: TaskContext, metrics: ShuffleWriteMetricsReporter): ShuffleWriter[K, V] =
    new PipelinedWriter[K, V](handle.asInstanceOf[PipelinedHandle[K, V, Any]], map, context, settings, metrics)

  override def getReader[K, C](
      handle: ShuffleHandle, startMap: Int, endMap: Int, startPartition: Int, endPartition: Int, context: TaskContext,
      metrics: ShuffleReadMetricsReporter): ShuffleReader[K, C] =
    new PipelinedReader[K, C](
      handle.asInstanceOf[PipelinedHandle[K, Any, C]], startPartition, endPartition, context, settings, metrics)

  override def unregisterShuffle(shuffleId: Int): Boolean = true

  override def stop(): Unit = if (isDriver) PipelinedShuffles.forgetAll()
}

/** The pipelined shuffles of this driver. Each belongs to one Spark job and is not reused by others. */
private[spark] object PipelinedShuffles {
  private val open = ConcurrentHashMap.newKeySet[Int]()

  private[sluice] def registered(shuffleId: Int): Unit = open.add(shuffleId)

  private[sluice] def forgetAll(): Unit = open.clear()

  /** Releases the shuffles when their Spark job ends. Spark itself would release them at a later garbage collection. */
  final class Listener extends SparkListener {
    override def onJobStart(event: org.apache.spark.scheduler.SparkListenerJobStart): Unit = {
      val shuffles = event.stageInfos.flatMap(_.shuffleDepId).filter(open.contains)
      if (shuffles.nonEmpty) ofJobs.put(event.jobId, shuffles)
    }

    override def onJobEnd(event: SparkListenerJobEnd): Unit =
      Option(ofJobs.remove(event.jobId)).foreach(_.foreach { shuffleId =>
        open.remove(shuffleId)
        ShuffleService.whileOpen(_.unregister(shuffleId))
      })

    private val ofJobs = new ConcurrentHashMap[Int, Seq[Int]]()
  }
}
