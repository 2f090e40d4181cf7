"""Guards of background tasks: an outage switches nothing off for good, and what ended is seen (K9)."""

from tests.guards.guard import guard

OUTLIVES = "app/test_lifecycle_outages.py::test_a_background_task_outlives_an_outage"
NOT_USED_AGAIN = (
    "contracts/test_database_outages.py::"
    "test_a_connection_whose_transaction_did_not_begin_or_not_end_is_not_used_again"
)

BACKGROUND_GUARDS = (
    guard(
        "K9",
        "a connection whose BEGIN failed is not used again",
        "storage.postgres:_terminate_unless_idle",
        "driver._top_xact is not None or driver.is_in_transaction()",
        "driver.is_in_transaction()",
        test=NOT_USED_AGAIN,
    ),
    guard(
        "K9",
        "a connection whose COMMIT or ROLLBACK failed is not used again",
        "storage.postgres:_terminate_unless_idle",
        "driver._top_xact is not None or driver.is_in_transaction()",
        "driver._top_xact is not None",
        test=NOT_USED_AGAIN,
    ),
    guard(
        "K9",
        "a failed run leaves no cancellation in its loop",
        "background:run_contained",
        "    async with asyncio.TaskGroup() as group:\n        task = group.create_task(_catch(job))\n    return _result_of(task)\n",
        "    return await _catch(job)\n",
        test="test_background.py::test_a_failed_run_leaves_nothing_behind_in_its_loop",
    ),
    guard(
        "K9",
        "a failed run does not end its background task",
        "background:BackgroundTask.repeat",
        "            await self.attempt(job)\n",
        "            await job()\n            self.record_success()\n",
        test=OUTLIVES,
    ),
    guard(
        "K9",
        "the look at gas goes on after an outage",
        "payments.gas:GasBudget.run",
        "            await self._task.attempt(self.refresh)\n",
        "            await self.refresh()\n",
        test="payments/test_gas.py::test_refreshing_continues_after_an_outage",
    ),
    guard(
        "K9",
        "a background task that ends by itself is an error in the log",
        "background:BackgroundTask.supervise",
        "        self.has_ended = True\n        fields",
        "        return\n        fields",
        test="test_background.py::test_a_task_that_ends_by_itself_is_an_error",
    ),
    guard(
        "K9",
        "a background task that ended makes the gateway not ready",
        "app.lifecycle:App.check_ready",
        "        is_running = not self.background.ended\n",
        "        is_running = True\n",
        test="app/test_lifecycle_outages.py::test_a_background_task_that_ended_is_on_readyz_and_in_the_metrics",
    ),
    guard(
        "K9",
        "doctor tells that a background task runs well no more",
        "app.doctor_findings:describe_late_tasks",
        "        if task.age_s > max(",
        "        if False and task.age_s > max(",
        test="cli/test_doctor.py::test_the_age_of_each_last_good_run_is_shown",
    ),
    guard(
        "K9",
        "failures in a row are few lines in the log",
        "background:BackgroundTask.record_failure",
        "        if self.failures.bit_count() == 1:\n",
        "        if True:\n",
        test="test_background.py::test_failures_in_a_row_are_logged_in_few_lines_without_a_traceback",
    ),
)
