package org.apache.spark.scheduler.cluster.sluice

import java.util.concurrent.{CompletableFuture, ExecutionException, TimeUnit, TimeoutException}

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import org.apache.spark.{FetchFailed, SparkEnv, SparkException}
import org.apache.spark.scheduler.{SparkListener, SparkListenerTaskEnd}
import org.apache.spark.shuffle.sluice.{Allocation, Location, OutputLocation, Settings, ShuffleService, WorkerAddress}

/** Requests the workers of a shuffle from the driver agent, and reports lost workers and finished shuffles to it. */
private[sluice] final class BridgeShuffleService(bridge: Bridge) extends ShuffleService {
  import BridgeShuffleService._

  override def register(shuffleId: Int, partitions: Int): Allocation = {
    val question = bridge.message("shuffle_register").put("shuffle_id", shuffleId).put("partitions", partitions)
    val answer =
      try bridge.request(question).get(RegisterSeconds, TimeUnit.SECONDS)
      catch {
        case error: ExecutionException => throw new SparkException(s"no workers for a shuffle: ${error.getCause.getMessage}", error)
        case error: TimeoutException   => throw new SparkException(s"no workers for a shuffle after $RegisterSeconds s", error)
      }
    val error = answer.path("error").asText("")
    val workers = answer.path("workers").elements().asScala.map(worker).toArray
    if (error.nonEmpty || workers.isEmpty) {
      throw new SparkException(s"no workers for a shuffle: ${if (error.isEmpty) "the answer names none" else error}")
    }
    new Allocation(
      answer.path("shuffle_number").asInt(), workers, math.max(1, answer.path("replicas").asInt(1)), key(answer),
      isSealed = SparkEnv.get.conf.getBoolean(Settings.Seal, false))
  }

  override def locate(shuffleId: Int): CompletableFuture[Seq[OutputLocation]] =
    bridge.request(bridge.message("shuffle_locate").put("shuffle_id", shuffleId))
      .orTimeout(LocateSeconds, TimeUnit.SECONDS).thenApply { answer =>
      val error = answer.path("error").asText("")
      if (error.nonEmpty) throw new SparkException(s"the workers of a shuffle cannot be found: $error")
      answer.path("outputs").elements().asScala.map { node =>
        OutputLocation(node.path("pushed_to").asText(), worker(node.path("address")))
      }.toVector
    }

  private def worker(node: JsonNode): WorkerAddress =
    WorkerAddress(node.path("name").asText(), node.path("host").asText(), node.path("port").asInt())

  private def key(answer: JsonNode): Array[Byte] = {
    val digits = answer.path("integrity_key").asText()
    if (!digits.matches(s"[0-9a-f]{${2 * KeyBytes}}")) throw new SparkException("a shuffle has no valid integrity key")
    java.util.HexFormat.of().parseHex(digits)
  }

  override def unregister(shuffleId: Int): Unit =
    bridge.send(bridge.message("shuffle_unregister").put("shuffle_id", shuffleId))

  override def lost(shuffleId: Int, workers: Seq[String]): Unit = {
    val message = bridge.message("shuffle_lost").put("shuffle_id", shuffleId)
    val names = message.putArray("workers")
    workers.foreach(names.add)
    bridge.send(message)
  }
}

private[sluice] object BridgeShuffleService {
  /** Long enough for a standby JobManager to take over. */
  private val RegisterSeconds = 120L
  private val LocateSeconds = 10L
  private val KeyBytes = 8
}

/** Reports the workers from which a task could not fetch. */
private[sluice] final class FetchFailureListener extends SparkListener {
  override def onTaskEnd(event: SparkListenerTaskEnd): Unit = event.reason match {
    case failed: FetchFailed =>
      val workers = Location.workers(failed.bmAddress)
      if (workers.nonEmpty) ShuffleService.whileOpen(_.lost(failed.shuffleId, workers))
    case _ => ()
  }
}
