package io.sluice.warm

import java.io.ByteArrayOutputStream
import java.lang.reflect.InvocationTargetException
import java.nio.file.{Files, Path, Paths}
import java.util.{Properties, TimeZone}

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import io.sluice.tls.Agent
import org.apache.spark.sluice.WarmUp

/** The main program of a warm standby JVM: it warms up Spark, then waits for a job on its standard input.
  *
  * A job is one line of JSON (`runtime/spark/jvm/waiting.py`) with the environment, properties, main class and
  * arguments that this process takes over. If the input ends without a line, the process exits. It runs one job and
  * ends with it.
  */
object WaitingRoom {
  private val MaxLineBytes = 8 << 20

  /** `arguments(0)` is the path of the file that exists while this process waits for a job. */
  def main(arguments: Array[String]): Unit = {
    TimeZone.getDefault // the first call sets the property user.timezone
    val before = System.getProperties.clone.asInstanceOf[Properties]
    val ready = Paths.get(arguments(0))
    WarmUp.run()
    System.setProperties(before)
    System.gc()
    Files.createFile(ready)
    val job = await()
    Environment.replaceWith(entries(job.path("environment")))
    entries(job.path("properties")).foreach { case (name, value) => System.setProperty(name, value) }
    Agent.loadAwaitedIdentity()
    Files.delete(ready) // this process no longer waits
    start(job.path("main").asText, job.path("arguments").elements.asScala.map(_.asText).toArray)
  }

  /** Reads single bytes, because the input after the line belongs to the job. */
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

/** The environment variables that `System.getenv` returns and that child processes inherit. */
private object Environment {

  /** Replaces all variables. Needs the packages java.lang and java.util opened, as Spark's own JVM options do. */
  def replaceWith(variables: Map[String, String]): Unit = {
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
