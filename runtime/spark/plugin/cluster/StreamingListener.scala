package org.apache.spark.scheduler.cluster.sluice

import scala.collection.mutable

import com.fasterxml.jackson.databind.node.ObjectNode

import org.apache.spark.scheduler.{SparkListener, SparkListenerEvent}
import org.apache.spark.sql.sluice.StreamingQueries
import org.apache.spark.sql.streaming.StreamingQueryListener._

/** Sends the state of all streaming queries to the agent whenever a batch is committed or a query starts or ends.
  *
  * A progress event belongs to a committed batch if it has the duration of the commit. Otherwise the trigger had no
  * data.
  */
private[sluice] final class StreamingListener(bridge: Bridge) extends SparkListener {
  import StreamingListener._

  override def onOtherEvent(event: SparkListenerEvent): Unit = event match {
    case started: QueryStartedEvent =>
      change(started.id.toString) { query =>
        query.runId = started.runId.toString
        query.name = Option(started.name).getOrElse("")
        query.location = StreamingQueries.checkpointOf(started.id)
        query.state = "RUNNING"
        query.error = ""
      }
    case progress: QueryProgressEvent if progress.progress.durationMs.containsKey(CommitDuration) =>
      change(progress.progress.id.toString) { query =>
        query.batch = query.batch.max(progress.progress.batchId)
        query.rows += progress.progress.numInputRows
        if (query.location.isEmpty) query.location = StreamingQueries.checkpointOf(progress.progress.id)
      }
    case ended: QueryTerminatedEvent =>
      change(ended.id.toString) { query =>
        query.state = if (ended.exception.isEmpty) "ENDED" else "FAILED"
        query.error = ended.exception.getOrElse("").take(MaxErrorCharacters)
      }
    case _ =>
  }

  private def change(id: String)(update: Query => Unit): Unit = Queries.synchronized {
    update(Queries.getOrElseUpdate(id, new Query))
    while (Queries.size > MaxQueries) Queries.remove(Queries.collectFirst { case (old, query) if query.over => old }.getOrElse(Queries.head._1))
    bridge.send(snapshot())
  }

  private def snapshot(): ObjectNode = {
    val message = bridge.message("streaming")
    val queries = message.putArray("queries")
    Queries.foreach { case (id, query) =>
      queries
        .addObject()
        .put("id", id)
        .put("run_id", query.runId)
        .put("name", query.name.take(MaxNameCharacters))
        .put("location", query.location)
        .put("state", query.state)
        .put("batch", query.batch)
        .put("rows", query.rows)
        .put("error", query.error)
    }
    message
  }
}

private[sluice] object StreamingListener {
  private val CommitDuration = "commitOffsets"
  private val MaxQueries = 64 // MAX_STREAMING_QUERIES in runtime/messages/progress.py
  private val MaxNameCharacters = 200
  private val MaxErrorCharacters = 2000

  private final class Query {
    var runId = ""
    var name = ""
    var location = ""
    var state = "RUNNING"
    var batch = -1L
    var rows = 0L
    var error = ""
    def over: Boolean = state != "RUNNING"
  }

  // Shared by all SparkContexts of this driver.
  private val Queries = mutable.LinkedHashMap.empty[String, Query]
}
