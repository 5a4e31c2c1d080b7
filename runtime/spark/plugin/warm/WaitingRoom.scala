package io.sluice.warm

import java.io.ByteArrayOutputStream
import java.lang.reflect.InvocationTargetException
import java.nio.file.{Files, Path, Paths}
import java.util.{Properties, TimeZone}

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import io.sluice.tls.Agent
import org.apache.spark.sluice.WarmUp

/** A JVM that has no job yet: it warms Spark up, and waits for one line on its standard input.
  *
  * The line (`runtime/spark/jvm/waiting.py`) says what this process becomes. The end of the input instead means that nobody
  * needs it. It takes one job, and ends with it.
  */
object WaitingRoom {
  private val MaxLineBytes = 8 << 20

  /** `arguments`: the file that says that it waits. */
  def main(arguments: Array[String]): Unit = {
    TimeZone.getDefault // notes it in a property, when somebody first asks
    val before = System.getProperties.clone.asInstanceOf[Properties]
    val ready = Paths.get(arguments(0))
    WarmUp.run()
    System.setProperties(before)
    System.gc()
    Files.createFile(ready)
    val job = await()
    Environment.become(entries(job.path("environment")))
    entries(job.path("properties")).foreach { case (name, value) => System.setProperty(name, value) }
    Agent.admit()
    Files.delete(ready) // from now on it is what it has become
    start(job.path("main").asText, job.path("arguments").elements.asScala.map(_.asText).toArray)
  }

  /** Byte for byte: what follows the line belongs to what this process becomes. */
  private def await(): JsonNode = {
    val line = new ByteArrayOutputStream
    var next = System.in.read()
    while (next != '\n') {
      if (next < 0 || line.size >= MaxLineBytes) System.exit(0)
      line.write(next)
      next = System.in.read()
    }
    new ObjectMapper().readTree(line.toByteArray)
  }

  private def entries(node: JsonNode): Map[String, String] =
    node.properties.asScala.map(each => each.getKey -> each.getValue.asText).toMap

  private def start(main: String, arguments: Array[String]): Unit =
    try Class.forName(main).getMethod("main", classOf[Array[String]]).invoke(null, arguments)
    catch { case error: InvocationTargetException => throw error.getCause }
}

/** The environment as `System.getenv` and the processes that this one starts see it. */
private object Environment {

  /** Replaces all of it; needs java.lang and java.util to be opened, which Spark's own options do. */
  def become(variables: Map[String, String]): Unit = {
    val shown = field("java.lang.ProcessEnvironment", "theUnmodifiableEnvironment").get(null)
    val strings = field("java.util.Collections$UnmodifiableMap", "m").get(shown).asInstanceOf[java.util.Map[String, String]]
    strings.clear()
    strings.putAll(variables.asJava)
  }

  private def field(of: String, name: String): java.lang.reflect.Field = {
    val found = Class.forName(of).getDeclaredField(name)
    found.setAccessible(true)
    found
  }
}
