package org.apache.spark.scheduler.cluster.sluice

import java.util.concurrent.atomic.AtomicInteger

import org.apache.spark.{ExceptionFailure, ExecutorLostFailure, FetchFailed, TaskFailedReason, TaskKilled}
import org.apache.spark.scheduler.{SparkListener, SparkListenerTaskEnd}

/** Reports to the agent the first tasks of this driver that failed with an error of their own. */
private[sluice] final class TaskFailures(bridge: Bridge) extends SparkListener {
  import TaskFailures._

  override def onTaskEnd(event: SparkListenerTaskEnd): Unit = event.reason match {
    case _: TaskKilled | _: ExecutorLostFailure | _: FetchFailed => // reported elsewhere, or a consequence
    case failure: TaskFailedReason if reported.getAndIncrement() < MaxReported =>
      val (error, trace) = failure match {
        case exception: ExceptionFailure => s"${exception.className}: ${exception.description}" -> exception.fullStackTrace
        case other                       => other.toErrorString -> ""
      }
      bridge.send(
        bridge
          .message("task_failed")
          .put("stage", event.stageId)
          .put("partition", event.taskInfo.index)
          .put("attempt", event.taskInfo.attemptNumber)
          .put("executor_id", event.taskInfo.executorId.toIntOption.getOrElse(0))
          .put("error", error.linesIterator.nextOption().getOrElse("").take(MaxErrorCharacters))
          .put("traceback", Option(trace).getOrElse("").take(MaxTraceCharacters)))
    case _ =>
  }
}

private[sluice] object TaskFailures {
  private val MaxReported = 50
  private val MaxErrorCharacters = 2000
  private val MaxTraceCharacters = 16384
  private val reported = new AtomicInteger()
}
