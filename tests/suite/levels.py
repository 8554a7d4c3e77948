"""What ``scripts/test`` leaves to ``scripts/test all``: most real jobs, of which a few are kept.

Three levels. The **gate** is what each change must pass, in five minutes on two idle cores. **all**
is what must pass before a merge: also the variants of real jobs, which are marked ``long`` here.
What takes longer is marked ``slow`` where it is written, or here if it is one of several variants,
and belongs to ``scripts/proof``. ``all`` has fifteen minutes on two cores, most of which real jobs
take: 2 to 3 s of a core each, one on the nodes of a Slurm 20 to 60.

Every mechanism has a test with real processes in the gate. A new test in the rooms of jobs is long:
one of a new mechanism is added to ``KEPT``. Only a run of the whole gate leaves long tests out:
``scripts/test tests/process/test_run.py`` runs all of that file but the slow ones.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

TESTS = Path(__file__).parents[1]

ROOMS_OF_JOBS = (
    "e2e", "engines", "local", "process", "snapshots", "torchft", "undisturbed", "zero_edit"
)  # fmt: skip
KEPT: dict[str, tuple[str, ...]] = {
    "e2e/test_job.py": ("test_a_killed_worker_is_replaced_and_heals",),
    "e2e/test_repair.py": ("test_a_death_in_the_middle_of_a_step_is_repaired",),
    "local/test_kills.py": ("test_global_weights_stay_equal",),
    "process/test_apart.py": ("test_groups_that_train_apart_are_said_to_while_they_do",),
    "process/test_campaign.py": ("test_a_campaign_is_carried_out",),
    "process/test_data.py": ("test_an_unmodified_script_trains_each_sample_once",),
    "process/test_door.py": ("test_ten_jobs_have_one_door_and_a_killed_lighthouse_harms_no_other",),
    "process/test_dying.py": ("test_the_others_go_on_before_it_is_gone[fork]",),
    "process/test_elastic.py": ("test_ftrun_elastic_is_loaded_only_when_it_is_used",),
    "process/test_events.py": ("test_a_job_s_events",),
    "process/test_exec.py": ("test_failures_stacks_and_stops_of_such_a_worker_are_a_worker_s",),
    "process/test_fresh.py": ("test_workers_and_replacements_are_as_fresh_as_a_new_interpreter",),
    "process/test_giving_up.py": ("test_the_others_go_on_without_it_until_people_start_it_again",),
    "process/test_guards.py": ("test_nothing_is_left_when_guards_are_killed[victims0]",),
    "process/test_helpers_that_do_not_start.py": (
        "test_a_lighthouse_that_never_comes_up_ends_the_job",
    ),
    "process/test_in_the_way.py": ("test_a_job_runs_among_files_and_threads",),
    "process/test_incidents.py": ("test_each_failure_is_one_incident_with_its_evidence",),
    "process/test_join.py": ("test_uneven_batches_train_what_one_process_does[plain]",),
    "process/test_launch.py": (
        "test_a_killed_worker_heals_and_has_the_value_of_its_last_life",
        "test_what_cannot_travel_is_refused_before_anything_is_started",
    ),
    "process/test_left_behind.py": ("test_it_is_named_and_ended_if_the_job_is_stopped",),
    "process/test_lighthouse_killed.py": ("test_requests_are_carried_out_once",),
    "process/test_logs.py": ("test_logs_follow_a_job_over_a_restart",),
    "process/test_numa.py": ("test_two_workers_and_a_replacement_have_cores_of_their_own",),
    "process/test_operators.py": ("test_drain_restart_kill_and_stacks",),
    "process/test_pods.py": (
        "test_a_pod_heeds_what_is_injected_and_finds_a_lighthouse_that_has_moved",
    ),
    "process/test_register.py": (
        "test_a_lighthouse_that_was_stopped_for_long_has_no_say_when_it_wakes",
    ),
    "process/test_register_chaos.py": ("test_one_leads_at_a_time_whoever_is_stopped[directory]",),
    "process/test_run.py": (
        "test_a_plain_script_runs_as_python_would_run_it",
        "test_the_scripts_exit_code_is_the_jobs",
    ),
    "process/test_scarcity.py": ("test_too_few_descriptors_are_said_before_anything_starts",),
    "process/test_script_timers.py": ("test_a_worker_whose_timer_runs_out_is_replaced",),
    "process/test_serving.py": (
        "test_the_newcomer_ends_alone_and_heals_once_the_state_can_be_carried",
    ),
    "process/test_sharded.py": ("test_groups_of_two_go_on_and_heal",),
    "process/test_signals.py": ("test_a_notice_by_a_file_or_a_signal_drains",),
    "process/test_signals_in_waits.py": ("test_it_leaves_within_the_grace[the list of replicas]",),
    "process/test_signals_to_all.py": ("test_a_script_saves_when_all_get_sigterm[options1]",),
    "process/test_snapshots.py": ("test_all_workers_die_and_their_agent_does_not[explicit]",),
    "process/test_stacks.py": ("test_a_worker_that_holds_the_lock_answers",),
    "process/test_standstill.py": (
        "test_peers_wait_so_the_one_that_stands_still_is_shown_and_replaced",
    ),
    "process/test_status_line.py": ("test_a_job_of_three_with_a_death",),
    "process/test_status_screen.py": ("test_a_job_on_the_screen",),
    "process/test_team.py": ("test_workers_and_hands_that_are_killed_begin_again_as_one_world",),
    "process/test_the_end.py": (
        "test_a_drained_replica_is_not_waited_for",
        "test_who_leaves_the_loop_leaves_the_others_to_train",
        "test_a_newcomer_that_ends_before_it_has_joined_has_not_finished",
        "test_what_all_replicas_raise_at_one_place_fails_once",
    ),
    "process/test_torchft_script.py": ("test_a_torchft_script_runs_unedited_and_heals",),
    "process/test_torchx.py": (
        "test_a_job_of_two_replicas",
        "test_a_lighthouse_by_hand_needs_a_token_and_a_role_several_nodes",
    ),
    "process/test_traces.py": ("test_a_collector_has_the_spans_of_a_kill",),
    "process/test_two_agents.py": ("test_status_asks_the_lighthouse_where_it_said_it_answers",),
    "process/test_unlike.py": (
        "test_an_all_reduce_of_another_size_ends_one_replica_and_costs_no_step",
    ),
    "process/test_versions.py": ("test_another_version_is_refused_in_words[an older lighthouse]",),
    "snapshots/test_one_group.py": (
        "test_all_is_killed_while_one_is_written_and_the_end_is_the_same[fsdp]",
    ),
    "torchft/test_threads.py": ("test_a_thread_that_fails_comes_again_and_heals[sync]",),
    "zero_edit/test_collectives.py": (
        "test_a_death_is_nothing_to_the_script[0:125:300-3]",
        "test_a_newcomer_has_what_its_predecessor_was_given",
    ),
    "zero_edit/test_check.py": ("test_a_script_that_heals",),
    "zero_edit/test_elsewhere.py": ("test_it_runs_as_one_world_and_is_said_not_to_heal[fork]",),
    "zero_edit/test_files.py": ("test_a_successor_goes_on_with_the_files_of_its_predecessor",),
    "zero_edit/test_forms.py": ("test_a_script_that_has_read_its_rank_before_begins_again",),
    "zero_edit/test_matrix.py": ("test_quick[kept.py: 1@train 2 2,0@train 3 5]",),
}
"""The tests of those rooms that are in the gate, by file."""

LONG: dict[str, tuple[str, ...]] = {
    "security/test_limits.py": ("test_a_request_body_is_not_read_beyond_its_limit",),
    "sim/test_sim.py": (
        "test_a_planted_bug_is_found",
        "test_one_fault_at_every_place_of_a_small_job",
        "test_schedules_hold_and_every_fault_strikes_in_them",
        "test_schedules_in_batches",
    ),
    "unit/agent/test_imports.py": (
        "test_late_imports_leave_variables_where_the_kernel_shows_them",
        "test_what_only_ftrun_loads_of_python_is_known",
        "test_two_forks_of_a_ready_spawner_have_unlike_certificates",
        "test_who_heals_without_tls_imports_nothing_for_it",
    ),
    "unit/core/lighthouse/test_succession.py": ("test_succeed_agrees_with_the_dumb_one",),
    "unit/inject/test_attached.py": (
        "test_an_interpreter_of_its_own_is_attached_when_it_imports_torch",
    ),
    "unit/lighthouse/test_refused_streams.py": ("test_nothing_is_left_of_a_stream_that_has_ended",),
    "unit/lighthouse/test_unreadable_calls.py": ("test_a_path_that_is_no_text_disturbs_nobody",),
    "unit/tools/status/screen/test_screen.py": ("test_every_size_is_filled_and_none_is_too_small",),
    "unit/inject/test_alone.py": ("test_one_group_that_trains_is_past_its_start",),
    "unit/snapshots/test_torn.py": ("test_killed_at_each_file_operation",),
    "unit/torchft/test_parameter_server.py": (
        "test_the_example_teaches_the_weights_by_two_clients",
    ),
    "unit/training/test_every_wait_ends.py": (
        "test_it_ends_by_its_timeout",
        "test_what_has_torchft_s_name_ends_too",
    ),
    "unit/training/test_local_sgd.py": (
        "test_a_death_within_an_outer_step_costs_the_survivors_nothing",
    ),
    "unit/training/test_snapshots.py": (
        "test_a_writer_that_is_killed_is_counted_and_replaced",
        "test_the_first_contributor_writes_and_the_next_one_takes_over",
        "test_one_that_heals_from_peers_reads_nothing",
        "test_the_next_job_goes_on[1]",
    ),
}
"""The tests elsewhere that are not in the gate."""

SLOW: dict[str, tuple[str, ...]] = {
    "engines/test_slurm.py": (
        # hands under Slurm are agents as others are; theirs: engines/test_groups.py
        "test_groups_of_two_nodes_each_outlive_an_agent",
    ),
    "process/test_dying.py": ("test_the_others_go_on_before_it_is_gone[exec]",),
    "process/test_giving_up.py": ("test_a_job_that_has_finished_without_it_says_so[options1-0]",),
    "process/test_guards.py": ("test_nothing_is_left_when_guards_are_killed[victims1]",),
    "process/test_join.py": (
        "test_uneven_batches_train_what_one_process_does[schedule]",
        "test_uneven_batches_train_what_one_process_does[clip]",
    ),
    "process/test_launch.py": ("test_ctrl_c_ends_the_job_and_is_raised[loop]",),
    "process/test_lighthouse_killed.py": ("test_a_failure_is_one_incident_and_closed[recorded]",),
    "process/test_quiet.py": ("test_a_lighthouse_is_as_silent_about_its_clients[wished1]",),
    # what each store does: unit/lighthouse/register/test_contract.py
    "process/test_register.py": ("test_the_state_is_away_and_then_its_lighthouse_is_killed[etcd]",),
    "process/test_register_chaos.py": ("test_one_leads_at_a_time_whoever_is_stopped[etcd]",),
    "process/test_run.py": ("test_a_plain_script_that_trains_is_started_again[raised]",),
    "process/test_signals.py": ("test_a_script_with_a_handler_gets_the_signal[1]",),
    "process/test_signals_to_all.py": ("test_a_script_saves_when_all_get_sigterm[options0]",),
    "process/test_snapshots.py": (
        "test_all_workers_die_and_their_agent_does_not[explicit_fsdp]",
        "test_a_job_that_is_stopped_takes_a_last_one[explicit]",
    ),
    "process/test_status_line.py": (
        "test_there_is_no_line_where_it_is_not_wanted[option]",
        "test_there_is_no_line_where_it_is_not_wanted[pipe]",
    ),
    "process/test_the_end.py": (
        "test_a_replica_that_has_never_trained_fails_the_job[min-replicas]",
    ),
    "process/test_two_agents.py": (
        "test_a_lighthouse_that_is_asked_to_stop_is_the_last_to_go[False]",
    ),
    "process/test_worker_environment.py": ("test_no_two_workers_draw_the_same_numbers[options1]",),
    "snapshots/test_kills.py": ("test_killed_twice[explicit_fsdp]",),
    "torchft/test_threads.py": ("test_a_thread_that_fails_comes_again_and_heals[async]",),
    "undisturbed/test_undisturbed.py": (
        # several replicas: groups-2x2; one group: groups-1x4
        "test_a_program_sees_what_it_sees_under_torchrun[groups-4x1]",
        # a script that starts itself anew: zero_edit/test_elsewhere.py
        "test_a_program_sees_what_it_sees_under_torchrun[again-2x1]",
        "test_a_program_sees_what_it_sees_under_torchrun[again-1x2]",
        "test_a_program_sees_what_it_sees_under_torchrun[another_process-1x2]",
        "test_a_program_sees_what_it_sees_under_torchrun[ddp-2x1-copied_deeply]",
        "test_a_program_sees_what_it_sees_under_torchrun[refused-2x1-power_sgd]",
        "test_a_program_sees_what_it_sees_under_torchrun[refused-2x1-sharded_model_of_the_first_kind]",
    ),
    "zero_edit/test_collectives.py": (
        "test_a_death_is_nothing_to_the_script[1:60:0-3]",
        "test_a_death_is_nothing_to_the_script[2:100:1000,0:200:100-4]",
        "test_so_it_is_with_gradients_over_nccl[0:125:300,2:200:0]",
    ),
    "zero_edit/test_divergence.py": (
        "test_a_newcomer_that_diverges_heals_anew[settings-its optimizer has SGD lr 0.5, that of "
        "replicas 0 and 2 SGD lr 0.1]",
    ),
    # other processes than the worker: undisturbed, [another_process-2x1]
    "zero_edit/test_elsewhere.py": (
        "test_it_runs_as_one_world_and_is_said_not_to_heal[subprocess]",
        "test_it_runs_as_one_world_and_is_said_not_to_heal[spawn]",
    ),
    "zero_edit/test_files.py": (
        "test_a_successor_knows_the_files_that_its_predecessor_kept[7--1]",
    ),
    "zero_edit/test_forms.py": (
        "test_an_object_that_raises_when_ftrun_asks_it_ends_in_one_world[optimizer]",
        "test_an_object_that_raises_when_ftrun_asks_it_ends_in_one_world[scheduler]",
        "test_what_ftrun_itself_cannot_do_trains_as_one_world[install]",
        "test_what_ftrun_itself_cannot_do_trains_as_one_world[lacks]",
    ),
    "zero_edit/test_iterators.py": ("test_a_batch_that_was_thrown_away_before_the_loop_counts[1]",),
    "zero_edit/test_last_step.py": (
        "test_who_has_lost_the_last_step_takes_its_result_before_it_goes_on[0]",
        "test_who_dies_in_the_last_steps_comes_to_the_same_end[range]",
        "test_who_dies_in_the_last_steps_comes_to_the_same_end[break]",
        "test_who_dies_in_the_last_steps_comes_to_the_same_end[nested]",
    ),
    "zero_edit/test_roots.py": (
        "test_a_root_that_is_away_joins_where_its_peers_wait_for_it[objects-1]",
        "test_a_root_that_is_away_joins_where_its_peers_wait_for_it[a file-1]",
    ),
    "zero_edit/test_subclass.py": ("test_it_heals_and_so_does_a_copy_that_is_an_average[by name]",),
    "zero_edit/test_survivors.py": ("test_survivors_lose_no_step[ddp unused]",),
    "zero_edit/test_turns.py": (
        "test_a_batch_that_a_turn_hands_on_is_its_ranks_own[4-after it]",
        "test_a_batch_that_a_turn_hands_on_is_its_ranks_own[4000-in the pass]",
    ),
    "zero_edit/test_workers.py": (
        "test_one_replica_writes_torchs_distributed_checkpoints[ddp-1]",
        "test_what_is_not_carried_runs_as_one_world[ddp]",
        "test_what_is_not_carried_runs_as_one_world[part]",
        "test_a_script_without_ddp_or_fsdp_runs_as_one_world",
    ),
}
"""Variants of a kind that another test shows with real processes, in most files the same test with
other parameters: ``scripts/test -m slow`` runs them, and none else does."""


def has_jobs(file: Path) -> bool:
    """Whether it is a file of the rooms whose tests start jobs."""
    return file.is_relative_to(TESTS) and file.relative_to(TESTS).parts[0] in ROOMS_OF_JOBS


def is_long(file: Path, name: str) -> bool:
    """Whether the test of that file (with its parameters' id in brackets) is not in the gate."""
    if not file.is_relative_to(TESTS):
        return False
    path = file.relative_to(TESTS).as_posix()
    names = {name, name.partition("[")[0]}
    if has_jobs(file):
        return not names & set(KEPT.get(path, ()))
    return bool(names & set(LONG.get(path, ())))


def is_slow(file: Path, name: str) -> bool:
    """Whether the test is a variant that no level has."""
    if not file.is_relative_to(TESTS):
        return False
    return name in SLOW.get(file.relative_to(TESTS).as_posix(), ())


def missing(ran: Collection[str]) -> list[str]:
    """The tests that the gate is to keep, and that are not among those that ran (by node id)."""
    bare = {name.partition("[")[0] for name in ran}
    wanted = [f"tests/{file}::{name}" for file, names in KEPT.items() for name in names]
    return [name for name in wanted if name not in ran and name not in bare]
