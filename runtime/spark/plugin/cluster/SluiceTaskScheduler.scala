package org.apache.spark.scheduler.cluster.sluice

import java.util.concurrent.atomic.AtomicBoolean

import org.apache.spark.SparkContext
import org.apache.spark.scheduler.{TaskDescription, TaskSchedulerImpl, WorkerOffer}

/** Spark's own, but a SparkContext does not wait for its executors: tasks do.
  *
  * Spark holds up the constructor of the SparkContext until enough executors are registered
  * (`spark.scheduler.minRegisteredResourcesRatio`), so that the first stage is spread over them. Here nothing is offered
  * before that, and the program plans its first query while the executors start.
  *
  * [[SluiceSchedulerBackend.hasBegun]] says when that is.
  */
private[sluice] final class SluiceTaskScheduler(sc: SparkContext) extends TaskSchedulerImpl(sc) {
  private val begun = new AtomicBoolean()

  override def postStartHook(): Unit = ()

  private def hasBegun: Boolean = backend match {
    case ours: SluiceSchedulerBackend => ours.hasBegun
    case _                            => false // offers begin before there is a backend here
  }

  override def resourceOffers(
      offers: IndexedSeq[WorkerOffer], isAllFreeResources: Boolean): Seq[Seq[TaskDescription]] =
    if (begun.get()) super.resourceOffers(offers, isAllFreeResources)
    else if (!hasBegun) Seq.empty
    else {
      // The offer of the executor that was waited for; those before it have been passed over.
      if (begun.compareAndSet(false, true)) backend.reviveOffers()
      super.resourceOffers(offers, isAllFreeResources)
    }
}
