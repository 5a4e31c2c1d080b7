package io.sluice.tls

import org.apache.hadoop.security.UserGroupInformation

/** Provides a user name if the uid has none. Spark gets its user from Hadoop, which fails without a name.
  *
  * A job's own uid has a name in its sandbox, but not at the isolation level `uid`, where the machine's users are
  * visible. The name has no effect on security: files belong to uids, and peers are identified by their certificates.
  */
private[tls] object UserName {

  private val Name = "job"
  private val Unknown = "?" // the JDK's user.name if the uid has no name

  def provide(): Unit =
    if (System.getProperty("user.name") == Unknown) {
      System.setProperty("user.name", Name)
      Option(System.getenv("HOME")).foreach(System.setProperty("user.home", _))
      try UserGroupInformation.setLoginUser(UserGroupInformation.createRemoteUser(Name))
      catch { case _: NoClassDefFoundError => } // a JVM without Hadoop, such as ZooKeeper's, needs no name
    }
}
