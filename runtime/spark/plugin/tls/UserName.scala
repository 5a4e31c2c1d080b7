package io.sluice.tls

import org.apache.hadoop.security.UserGroupInformation

/** Hadoop, which Spark asks who its user is, refuses to run where the uid has no name: then this gives it one.
  *
  * A job's own uid has a name in its sandbox, but not at the level `uid`, which shows the machine's own users. Names
  * decide nothing here: files belong to uids, and peers are known by their certificates.
  */
private[tls] object UserName {

  private val Name = "job"
  private val Unknown = "?" // what the JDK makes of a uid without a name

  def provide(): Unit =
    if (System.getProperty("user.name") == Unknown) {
      System.setProperty("user.name", Name)
      Option(System.getenv("HOME")).foreach(System.setProperty("user.home", _))
      try UserGroupInformation.setLoginUser(UserGroupInformation.createRemoteUser(Name))
      catch { case _: NoClassDefFoundError => } // a JVM without Hadoop, such as ZooKeeper's, asks nobody
    }
}
