package org.apache.spark.sql.sluice

import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/** The streaming queries that run in this driver, of all its sessions. */
object StreamingQueries extends Logging {

  /** Where a running query keeps its checkpoint; empty when it does not run (any more). */
  def checkpointOf(id: UUID): String = executions.find(_.id == id).map(_.resolvedCheckpointRoot).getOrElse("")

  /** Stops all queries: after the batch that each of them works on, or in its middle when that takes too long.
    *
    * A batch that was interrupted is not committed; whoever goes on runs it again with the same input.
    */
  def stopAll(graceMillis: Long): Unit = {
    val deadline = System.currentTimeMillis() + graceMillis
    val running = executions.map(query => query -> query.lastProgressBatch)
    running.foreach { case (query, batch) =>
      while (query.isActive && query.status.isTriggerActive && query.lastProgressBatch == batch &&
        System.currentTimeMillis() < deadline) Thread.sleep(PollMillis)
      try query.stop()
      catch { case NonFatal(error) => logWarning(s"query ${query.id} did not stop in order", error) }
    }
  }

  private val PollMillis = 20L

  private implicit class Progress(query: StreamExecution) {
    def lastProgressBatch: Long = Option(query.lastProgress).map(_.batchId).getOrElse(-1L)
  }

  private def executions: Seq[StreamExecution] =
    SparkSession.getDefaultSession.orElse(SparkSession.getActiveSession).toSeq.flatMap { session =>
      session.sharedState.activeStreamingQueries.values.asScala.toSeq
    }
}
