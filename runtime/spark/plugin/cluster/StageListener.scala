package org.apache.spark.scheduler.cluster.sluice

import java.util.concurrent.TimeUnit

import scala.collection.mutable

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.Success
import org.apache.spark.executor.TaskMetrics
import org.apache.spark.scheduler._
import org.apache.spark.util.ThreadUtils

/** Reports the stages of this driver and their dependencies at most once a second (`StageTable` in
  * `runtime/messages/progress.py`).
  *
  * The report is bounded: it has the latest stages only, truncated names, and a sample of each stage's task times.
  */
private[sluice] final class StageListener(bridge: Bridge) extends SparkListener {
  import StageListener._

  StageListener.synchronized {
    stages.clear()
    leftOut = 0L
  }
  private val timer = ThreadUtils.newDaemonSingleThreadScheduledExecutor("sluice-stages")
  timer.scheduleWithFixedDelay(() => report(), IntervalMillis, IntervalMillis, TimeUnit.MILLISECONDS)

  /** Reports the last state and stops. */
  def close(): Unit = {
    timer.shutdownNow()
    snapshot(always = true).foreach(bridge.send)
  }

  private def report(): Unit = snapshot(always = false).foreach(bridge.sendIfIdle)

  private def snapshot(always: Boolean): Option[ObjectNode] = StageListener.synchronized {
    if (!changed && !always) None
    else {
      changed = false
      val message = bridge.message("stages").put("left_out", leftOut)
      val list = message.putArray("stages")
      stages.values.foreach(_.describe(list.addObject()))
      Some(message)
    }
  }

  private def change(body: => Unit): Unit = StageListener.synchronized { body; changed = true }

  override def onJobStart(event: SparkListenerJobStart): Unit = change {
    val description = Option(event.properties).flatMap(each => Option(each.getProperty("spark.job.description"))).getOrElse("")
    event.stageInfos.sortBy(_.stageId).foreach(info => known(info, event.jobId, description))
  }

  override def onJobEnd(event: SparkListenerJobEnd): Unit = change {
    // A stage whose output already exists is never submitted.
    stages.values.filter(stage => stage.job == event.jobId && stage.state == "PENDING").foreach(_.state = "SKIPPED")
  }

  override def onStageSubmitted(event: SparkListenerStageSubmitted): Unit = change {
    val stage = known(event.stageInfo, -1, "")
    stage.state = "RUNNING"
    stage.attempts = event.stageInfo.attemptNumber() + 1
    stage.tasks = event.stageInfo.numTasks
    stage.startedAt = event.stageInfo.submissionTime.getOrElse(0L)
    stage.endedAt = 0L
  }

  override def onStageCompleted(event: SparkListenerStageCompleted): Unit = change {
    stages.get(event.stageInfo.stageId).foreach { stage =>
      stage.state = if (event.stageInfo.failureReason.isEmpty) "FINISHED" else "FAILED"
      stage.failure = cut(event.stageInfo.failureReason.getOrElse(""), MaxFailureChars)
      stage.endedAt = event.stageInfo.completionTime.getOrElse(0L)
    }
  }

  override def onTaskStart(event: SparkListenerTaskStart): Unit = change {
    stages.get(event.stageId).foreach(_.running += 1)
  }

  override def onTaskEnd(event: SparkListenerTaskEnd): Unit = change {
    stages.get(event.stageId).foreach { stage =>
      stage.running = math.max(0, stage.running - 1)
      if (event.reason == Success) {
        stage.finished += 1
        stage.times.add(event.taskInfo.duration)
      } else stage.failed += 1
      Option(event.taskMetrics).foreach(stage.count)
    }
  }

  private def known(info: StageInfo, job: Int, description: String): Stage =
    stages.getOrElseUpdate(info.stageId, {
      if (stages.size >= MaxStages) forgetOldest()
      new Stage(info, job, cut(description, MaxNameChars))
    })

  private def forgetOldest(): Unit =
    stages.values.find(stage => stage.state != "RUNNING" && stage.state != "PENDING").orElse(stages.values.headOption).foreach { stage =>
      stages.remove(stage.id)
      leftOut += 1
    }
}

private[sluice] object StageListener {
  private val IntervalMillis = 1000L
  private val MaxStages = 300 // MAX_STAGES in runtime/messages/progress.py
  private val MaxNameChars = 200
  private val MaxFailureChars = 500
  private val MaxParents = 50
  private val MaxOperators = 20
  private val MaxOperatorChars = 80
  private val SampledTimes = 500

  // The stages of the latest SparkContext only: each SparkContext numbers its stages from 0.
  private val stages = mutable.LinkedHashMap.empty[Int, Stage]
  private var leftOut = 0L
  private var changed = false

  private def cut(text: String, chars: Int): String = text.take(chars)

  /** A uniform sample of at most `SampledTimes` values (reservoir sampling), with the exact minimum and maximum. */
  private final class Times {
    private val sample = mutable.ArrayBuffer.empty[Long]
    private val random = new java.util.SplittableRandom(1L)
    private var seen = 0L
    private var least = Long.MaxValue
    private var most = 0L

    def add(value: Long): Unit = {
      seen += 1
      least = math.min(least, value)
      most = math.max(most, value)
      if (sample.size < SampledTimes) sample += value
      else {
        val place = random.nextLong(seen)
        if (place < SampledTimes) sample(place.toInt) = value
      }
    }

    /** Minimum, the three quartiles and maximum; empty if there are no values. */
    def quantiles: Seq[Long] =
      if (seen == 0) Nil
      else {
        val sorted = sample.sorted
        def at(share: Double): Long = sorted(math.min(sorted.size - 1, (share * sorted.size).toInt))
        Seq(least, at(0.25), at(0.5), at(0.75), most)
      }
  }

  private final class Stage(info: StageInfo, val job: Int, description: String) {
    val id: Int = info.stageId
    private val name = cut(info.name, MaxNameChars)
    private val parents = info.parentIds.take(MaxParents)
    private val operators = info.rddInfos.sortBy(_.id).flatMap(_.scope).map(_.name).distinct.take(MaxOperators)
    var state = "PENDING"
    var attempts = 0
    var tasks: Int = info.numTasks
    var running = 0
    var finished = 0
    var failed = 0
    var startedAt = 0L
    var endedAt = 0L
    var failure = ""
    val times = new Times
    private var inputBytes, outputBytes, shuffleReadBytes, shuffleWriteBytes, memorySpilled, diskSpilled = 0L
    private var runMillis, gcMillis = 0L

    def count(metrics: TaskMetrics): Unit = {
      inputBytes += metrics.inputMetrics.bytesRead
      outputBytes += metrics.outputMetrics.bytesWritten
      shuffleReadBytes += metrics.shuffleReadMetrics.totalBytesRead
      shuffleWriteBytes += metrics.shuffleWriteMetrics.bytesWritten
      memorySpilled += metrics.memoryBytesSpilled
      diskSpilled += metrics.diskBytesSpilled
      runMillis += metrics.executorRunTime
      gcMillis += metrics.jvmGCTime
    }

    def describe(node: ObjectNode): Unit = {
      node
        .put("id", id).put("job", job).put("name", name).put("description", description).put("state", state)
        .put("attempts", attempts).put("tasks_total", tasks).put("tasks_running", running)
        .put("tasks_finished", finished).put("tasks_failed", failed)
        .put("started_at", startedAt).put("ended_at", endedAt).put("failure", failure)
        .put("input_bytes", inputBytes).put("output_bytes", outputBytes)
        .put("shuffle_read_bytes", shuffleReadBytes).put("shuffle_write_bytes", shuffleWriteBytes)
        .put("memory_spilled_bytes", memorySpilled).put("disk_spilled_bytes", diskSpilled)
        .put("run_ms", runMillis).put("gc_ms", gcMillis)
      val above = node.putArray("parents")
      parents.foreach(parent => above.add(parent))
      val scopes = node.putArray("operators")
      operators.foreach(operator => scopes.add(cut(operator, MaxOperatorChars)))
      val quantiles = node.putArray("task_ms")
      times.quantiles.foreach(value => quantiles.add(value))
    }
  }
}
