package org.apache.spark.scheduler.cluster.sluice

import java.util.concurrent.TimeUnit

import scala.collection.mutable

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.Success
import org.apache.spark.scheduler._
import org.apache.spark.util.ThreadUtils

/** Counts jobs, stages and tasks since the start of this driver, and reports them at most five times a second. */
private[sluice] final class ProgressListener(bridge: Bridge) extends SparkListener {
  import ProgressListener._

  private var changed = false
  // By job, the stages that were not submitted yet. A stage whose output exists is skipped and never completes.
  private val waiting = mutable.Map.empty[Int, mutable.Map[Int, Int]]
  private val timer = ThreadUtils.newDaemonSingleThreadScheduledExecutor("sluice-progress")
  timer.scheduleWithFixedDelay(() => report(), IntervalMillis, IntervalMillis, TimeUnit.MILLISECONDS)

  /** Reports the last state and stops. */
  def close(): Unit = {
    timer.shutdownNow()
    ProgressListener.synchronized { counters("tasks_running") = 0 } // running tasks ended with their executors
    bridge.send(snapshot())
  }

  private def report(): Unit = if (synchronized(changed)) bridge.sendIfIdle(snapshot())

  private def snapshot(): ObjectNode = {
    synchronized { changed = false }
    ProgressListener.synchronized {
      val message = bridge.message("progress").put("first_task_at", firstTaskAt)
      counters.foreach { case (name, value) => message.put(name, value) }
      message
    }
  }

  private def count(changes: (String, Long)*): Unit = {
    ProgressListener.synchronized { changes.foreach { case (name, change) => counters(name) += change } }
    synchronized { changed = true }
  }

  override def onJobStart(event: SparkListenerJobStart): Unit = synchronized {
    val stages = event.stageInfos.map(stage => stage.stageId -> stage.numTasks)
    waiting(event.jobId) = mutable.Map(stages: _*)
    count("spark_jobs_started" -> 1, "stages_total" -> stages.size.toLong, "tasks_total" -> stages.map(_._2.toLong).sum)
  }

  override def onJobEnd(event: SparkListenerJobEnd): Unit = synchronized {
    val never = waiting.remove(event.jobId).toSeq.flatMap(_.values)
    if (event.jobResult == JobSucceeded) {
      count("spark_jobs_finished" -> 1, "stages_total" -> -never.size.toLong, "tasks_total" -> -never.map(_.toLong).sum)
    } else count("spark_jobs_failed" -> 1) // stages that were not submitted were not skipped either
  }

  override def onStageSubmitted(event: SparkListenerStageSubmitted): Unit = synchronized {
    val stage = event.stageInfo
    val first = waiting.values.map(_.remove(stage.stageId)).toSeq.flatten.nonEmpty
    if (!first) count("stages_total" -> 1, "tasks_total" -> stage.numTasks.toLong) // a further attempt
  }

  override def onStageCompleted(event: SparkListenerStageCompleted): Unit =
    count((if (event.stageInfo.failureReason.isEmpty) "stages_finished" else "stages_failed") -> 1)

  override def onTaskStart(event: SparkListenerTaskStart): Unit = {
    ProgressListener.synchronized { if (firstTaskAt == 0.0) firstTaskAt = event.taskInfo.launchTime / 1000.0 }
    count("tasks_running" -> 1)
  }

  override def onTaskEnd(event: SparkListenerTaskEnd): Unit = {
    val metrics = Option(event.taskMetrics)
    count(
      "tasks_running" -> -1,
      (if (event.reason == Success) "tasks_finished" else "tasks_failed") -> 1,
      "shuffle_bytes_written" -> metrics.map(_.shuffleWriteMetrics.bytesWritten).getOrElse(0L),
      "shuffle_bytes_read" -> metrics.map(_.shuffleReadMetrics.totalBytesRead).getOrElse(0L))
  }

  override def onExecutorAdded(event: SparkListenerExecutorAdded): Unit = count("executors_added" -> 1)
  override def onExecutorRemoved(event: SparkListenerExecutorRemoved): Unit = count("executors_removed" -> 1)
}

private[sluice] object ProgressListener {
  private val IntervalMillis = 200L

  /** The counters of `JobProgress` in `runtime/messages/progress.py`. */
  private val Counters = Seq(
    "spark_jobs_started", "spark_jobs_finished", "spark_jobs_failed", "stages_total", "stages_finished", "stages_failed",
    "tasks_total", "tasks_finished", "tasks_failed", "tasks_running", "executors_added", "executors_removed", "shuffle_bytes_written", "shuffle_bytes_read")

  // Shared by all SparkContexts of this driver: a program may start several, one after the other.
  private val counters = mutable.LinkedHashMap(Counters.map(_ -> 0L): _*)
  private var firstTaskAt = 0.0
}
