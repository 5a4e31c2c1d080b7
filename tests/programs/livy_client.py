"""Run by Airflow's own Python: the real LivyHook submits, polls, reads the log and deletes. Prints what it saw."""

from __future__ import annotations

import json
import sys
import time

from airflow.providers.apache.livy.hooks.livy import BatchState, LivyHook  # type: ignore[import-not-found]

DEADLINE_SECONDS = 60.0


def main(file: str, authorization: str) -> None:
    """Run the batch; ``file`` is the URL of the pipeline."""
    hook = LivyHook(livy_conn_id="sluice", extra_headers={"Authorization": authorization})
    batch = hook.post_batch(file=file, args=["--n", 3], name="nightly", num_executors=1)
    seen: list[str] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not seen or BatchState(seen[-1]) not in hook.TERMINAL_STATES:
        state = hook.get_batch_state(batch).value
        if not seen or seen[-1] != state:
            seen.append(state)
        if time.monotonic() > deadline:
            raise TimeoutError(seen)
        time.sleep(0.1)
    shown = hook.get_batch(batch)
    log = hook.get_batch_logs(batch, 0, 100)
    hook.dump_batch_logs(batch)
    deleted = hook.delete_batch(batch)
    sys.stdout.write(json.dumps({"states": seen, "batch": shown, "log": log, "deleted": deleted}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.read().strip())
