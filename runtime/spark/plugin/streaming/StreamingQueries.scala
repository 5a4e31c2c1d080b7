package org.apache.spark.sql.sluice

import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/** The running streaming queries of all sessions of this driver. */
object StreamingQueries extends Logging {

  /** The checkpoint location of a running query; empty if the query does not run. */
  def checkpointOf(id: UUID): String = executions.find(_.id == id).map(_.resolvedCheckpointRoot).getOrElse("")

  /** Stops each query after its current batch, or interrupts the batch when `graceMillis` have passed.
    *
    * An interrupted batch is not committed. The next attempt runs it again with the same input.
    */
  def stopAll(graceMillis: Long): Unit = {
    val deadline = System.currentTimeMillis() + graceMillis
    val running = executions.map(query => query -> query.lastProgressBatch)
    running.foreach { case (query, batch) =>
      while (query.isActive && query.status.isTriggerActive && query.lastProgressBatch == batch &&
        System.currentTimeMillis() < deadline) Thread.sleep(PollMillis)
      try query.stop()
      catch { case NonFatal(error) => logWarning(s"query ${query.id} did not stop cleanly", error) }
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
