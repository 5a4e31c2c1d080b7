package org.apache.spark.scheduler.cluster.sluice

import java.util.concurrent.atomic.AtomicBoolean

import org.apache.spark.SparkContext
import org.apache.spark.scheduler.{TaskDescription, TaskSchedulerImpl, WorkerOffer}

/** Spark's task scheduler, except that tasks instead of the SparkContext wait for the executors.
  *
  * Spark blocks the constructor of the SparkContext until enough executors are registered
  * (`spark.scheduler.minRegisteredResourcesRatio`), so that the first stage is spread over them. This scheduler instead
  * offers no resources until then, so the program plans its first query while the executors start.
  *
  * [[SluiceSchedulerBackend.hasBegun]] decides when offers begin.
  */
private[sluice] final class SluiceTaskScheduler(sc: SparkContext) extends TaskSchedulerImpl(sc) {
  private val begun = new AtomicBoolean()

  override def postStartHook(): Unit = ()

  private def hasBegun: Boolean = backend match {
    case ours: SluiceSchedulerBackend => ours.hasBegun
    case _                            => false // offers may arrive before the backend is set
  }

  override def resourceOffers(
      offers: IndexedSeq[WorkerOffer], isAllFreeResources: Boolean): Seq[Seq[TaskDescription]] =
    if (begun.get()) super.resourceOffers(offers, isAllFreeResources)
    else if (!hasBegun) Seq.empty
    else {
      // Earlier offers were ignored: request new ones from all executors.
      if (begun.compareAndSet(false, true)) backend.reviveOffers()
      super.resourceOffers(offers, isAllFreeResources)
    }
}
