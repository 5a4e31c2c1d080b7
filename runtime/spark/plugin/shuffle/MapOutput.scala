package org.apache.spark.shuffle.sluice

import java.io.{File, FileInputStream, IOException, InputStream, OutputStream}
import java.util.Optional

import org.apache.spark.shuffle.api._
import org.apache.spark.shuffle.api.metadata.MapOutputCommitMessage
import org.apache.spark.storage.BlockManagerId

/** Writes the output of one map attempt from Spark's own writers to a [[MapPusher]]. */
private[sluice] final class MapOutput(pusher: MapPusher) extends ShuffleExecutorComponents {
  private var committed: Option[BlockManagerId] = None

  /** The location of the committed output. Call this after the writer has finished. */
  def location: BlockManagerId =
    committed.getOrElse { // Spark's writers do not commit a map without records
      committed = Some(pusher.commit())
      committed.get
    }

  /** Discards the output after the task has failed. */
  def abandon(): Unit = if (committed.isEmpty) pusher.abort()

  override def initializeExecutor(application: String, executor: String, extra: java.util.Map[String, String]): Unit = ()

  override def createMapOutputWriter(shuffleId: Int, map: Long, partitions: Int): ShuffleMapOutputWriter =
    new ShuffleMapOutputWriter {
      private val lengths = new Array[Long](partitions)

      override def getPartitionWriter(partition: Int): ShufflePartitionWriter = new ShufflePartitionWriter {
        private val stream = new SegmentStream(pusher, partition)
        override def openStream(): OutputStream = new OutputStream {
          override def write(byte: Int): Unit = stream.write(byte)
          override def write(bytes: Array[Byte], offset: Int, length: Int): Unit = stream.write(bytes, offset, length)
          override def close(): Unit = {
            stream.close()
            lengths(partition) = stream.written
          }
        }
        override def getNumBytesWritten: Long = stream.written
      }

      override def commitAllPartitions(checksums: Array[Long]): MapOutputCommitMessage = {
        committed = Some(pusher.commit())
        MapOutputCommitMessage.of(lengths)
      }

      override def abort(error: Throwable): Unit = abandon()
    }

  override def createSingleFileMapOutputWriter(shuffleId: Int, map: Long): Optional[SingleSpillShuffleMapOutputWriter] =
    Optional.of((file: File, lengths: Array[Long], _: Array[Long]) => {
      val in = new FileInputStream(file)
      try {
        lengths.indices.foreach { partition => copy(in, partition, lengths(partition)) }
        committed = Some(pusher.commit())
      } finally {
        in.close()
        file.delete()
      }
    })

  private def copy(in: InputStream, partition: Int, length: Long): Unit = if (length > 0) {
    val out = new SegmentStream(pusher, partition)
    val buffer = new Array[Byte](MapOutput.CopyBytes)
    var left = length
    while (left > 0) {
      val read = in.read(buffer, 0, math.min(left, buffer.length.toLong).toInt)
      if (read < 0) throw new IOException(s"$left bytes of partition $partition are missing in the spill file")
      out.write(buffer, 0, read)
      left -= read
    }
    out.close()
  }
}

private object MapOutput {
  private val CopyBytes = 64 << 10
}
