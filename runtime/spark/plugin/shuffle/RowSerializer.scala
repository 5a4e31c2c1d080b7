package org.apache.spark.shuffle.sluice

import scala.util.control.NonFatal

import org.apache.spark.serializer.Serializer
import org.apache.spark.sql.execution.UnsafeRowSerializer
import org.apache.spark.sql.execution.metric.SQLMetric

/** What [[RowWriter]] and [[RowReader]] need of SQL's serializer, which keeps it to itself. */
private[sluice] object RowSerializer {
  private val fields = Seq("numFields", "dataSize").flatMap { name =>
    try {
      val field = classOf[UnsafeRowSerializer].getDeclaredField(name)
      field.setAccessible(true)
      Some(name -> field)
    } catch { case NonFatal(_) => None }
  }.toMap

  /** Whether rows can be written past `serializer`; if not, it is used as it is. */
  def isOne(serializer: Serializer): Boolean = serializer.isInstanceOf[UnsafeRowSerializer] && fields.size == 2

  def fieldCount(serializer: Serializer): Int = fields("numFields").getInt(serializer)

  /** Null when nobody wants to know. */
  def dataSize(serializer: Serializer): SQLMetric = fields("dataSize").get(serializer).asInstanceOf[SQLMetric]
}
