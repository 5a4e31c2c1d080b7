package org.apache.spark.shuffle.sluice

import scala.util.control.NonFatal

import org.apache.spark.serializer.Serializer
import org.apache.spark.sql.execution.UnsafeRowSerializer
import org.apache.spark.sql.execution.metric.SQLMetric

/** Gives [[RowWriter]] and [[RowReader]] access to private fields of SQL's serializer. */
private[sluice] object RowSerializer {
  private val fields = Seq("numFields", "dataSize").flatMap { name =>
    try {
      val field = classOf[UnsafeRowSerializer].getDeclaredField(name)
      field.setAccessible(true)
      Some(name -> field)
    } catch { case NonFatal(_) => None }
  }.toMap

  /** Whether rows can be written without `serializer`. If not, Spark's own writers use it. */
  def supports(serializer: Serializer): Boolean = serializer.isInstanceOf[UnsafeRowSerializer] && fields.size == 2

  def fieldCount(serializer: Serializer): Int = fields("numFields").getInt(serializer)

  /** The metric for the size of the written rows; null if it is not collected. */
  def dataSize(serializer: Serializer): SQLMetric = fields("dataSize").get(serializer).asInstanceOf[SQLMetric]
}
