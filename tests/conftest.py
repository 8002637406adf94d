"""Eight CPU devices, and shapes and dtypes of the maths checked against its annotations."""

import collections
import os
import re
import shutil
import signal
import sys
import threading
from pathlib import Path

import programs

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count=8 {programs.FLAGS}")
os.environ["JAX_PLATFORMS"] = "cpu"
# An installed TPU compiler would look for the machine's TPUs, and complain in every command.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["JAXRL_LLM_CACHE"] = ""  # tests neither read nor fill the user's folder

# A shell that starts tests in the background ignores Ctrl-C for them, and for the runs that they
# start and interrupt.
if (threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.SIG_IGN):
  signal.signal(signal.SIGINT, signal.default_int_handler)

import jax
import pytest
from jaxtyping import install_import_hook

HERE = Path(__file__).parent
_HOOK = install_import_hook(["jaxrl_llm.ops", "jaxrl_llm.objective"], "beartype.beartype")


def _registries_as_they_were():
  from jaxrl_llm import registry

  tables = [table for table in vars(registry).values() if isinstance(table, registry.Table)]
  before = []
  for table in tables:
    table.names()  # the package's own entries
    before.append(dict(table.entries))
  modules = set(sys.modules)
  yield
  for table, entries in zip(tables, before, strict=True):
    table.entries.clear()
    table.entries.update(entries)
  for name in set(sys.modules) - modules:
    if name.startswith("jaxrl_llm_plugin_"):
      del sys.modules[name]


# What a test, or a fixture of its module, registers is gone with it: no test depends on those that
# ran before it.
after_each_module = pytest.fixture(_registries_as_they_were, scope="module", autouse=True)
after_each_test = pytest.fixture(_registries_as_they_were, autouse=True)


# Longer checks, by file: further cases of what a quick test covers, and whole runs by command.
# None: the whole file. `pytest -m slow` runs them.
SLOW = {
    "lab/test_atlas.py": r"command_writes|estimators\[(?!(ppo|gspo)\])",
    "benchmark/test_benchmark.py": "command|does_not_depend_on_the_piece",
    "lab/test_comparisons.py": "agrees_with_the_sum_over_groups",
    "lab/test_exact_group.py": "sampling_agrees|leave_one_out",
    "papers/counting/test_head_rows.py": "merging_trained|moves_more_or_less",
    "lab/test_notebook.py": "is_what_trains",
    "papers/counting/test_readout.py": "loop_without_a_cache",
    "lab/test_replay.py": None,
    "papers/soft_tokens/test_soft_runs.py": "repeats|in_its_row",
    "models/hf/test_hf_memory.py": None,
    "models/hf/test_hf_parity.py": r"greedy_continuation\[(?!qwen3_untied)|(logits|round_trip)"
                                r"\[(?!(qwen3_untied|llama)\])|dtypes|on_a_mesh",
    "models/test_moe.py": r"cache_scan_and_mesh|loop_over_tokens\[True|divides_neither"
                          "|no_other_row",
    "papers/occ/test_mtp.py": r"precedes_it\[(scanned|experts)|nothing\[scanned|wrong_(target|emb)",
    "models/hf/test_peft.py": r"merged_parameters_do\[(?!qwen3_tied)",
    "models/test_row_attention.py": r"bfloat16|32768|does_not_depend|neighbour\[(?!blocked)"
                                    r"|four_devices|of_a_device|attention\[(splash|triton)",
    "models/test_trainable.py": r"eight_devices|chosen_moves\[(?!lora\])|a_split_that_leaks",
    "models/test_transformer.py": "execution_choices",
    "objective/test_advantages.py":
        r"constant_rewards|every_advantage\[(?!(grpo|rloo|otb|tempo)\])",
    "objective/test_aggregation.py": "balanced_edges",
    "objective/test_correction.py": "finite_at_extremes",
    "objective/test_estimators.py": r"(test_contract|float64)[^[]*\["
                                    r"(?!(ctpo|minpro)-|(sapo|dro)-.*constant_anchor)",
    "objective/test_loss.py": "columns_outside|critic_adds|outside_the_support",
    "objective/test_mismatch.py": "halves_merge",
    "papers/occ/test_mtp_loss.py": r"nothing\[(?!occ)|eight_devices|bit_for_bit|know_advantages",
    "objective/test_otb.py": "tool_text_moves|only_longest_row|mean_over_rows_alive",
    "papers/soft_tokens/test_soft_loss.py": r"other_scores|mean_zero|\[hard",
    "objective/test_tempo.py": "the_loop_rejects|nothing_branches",
    "papers/tvm/test_value_labels.py": "unbiased|bias_is_noticed",
    "ops/test_prefix.py": "sharded_length",
    "ops/test_token_stats.py": "long_tails|stays_float64|masked_helpers|banned_tokens_in_float64"
                               r"|pruned_statistics_and_gradients\[\{'(top_k|min_p)': [0-9.]+\}",
    "planning/test_device_benchmark.py": "command_runs",
    "planning/test_memory.py": "real_shards|engine_for_each",
    "planning/test_plan.py": None,
    "parallel/test_faults.py": r"exactly|sigterm|go_on\[(1-1|4-2)|export|missing",
    "parallel/test_runs.py": r"one_computes\[(2-4-(tools|dynamic|overlap)|4-2-plain)|is_told",
    "reporting/test_glossary.py": "every_feature",
    "rollouts/test_engine.py": "shared_prompts_change|comparison_rejects|window_quota"
                               "|stacked_blocks|compiles_no_more|waste_is_small|eight_devices"
                               "|rules_are_those|matrices_are_cast|row_limits|stop_tokens_wait"
                               r"|counts|equals_generate\[(1-64|8-64|32-64|32-16)",
    "rollouts/test_engines.py": r"generate\[(fsdp|tensor)|fewer_groups|turns_of|limits_are",
    "papers/critical_tokens/test_probing.py": "forbidden_token",
    "papers/tvm/test_search.py": r"greedy_response\[step_end0",
    "rollouts/test_int8.py": "one_device|one_byte|logits_of_rounded|behavior_is|wider_copy",
    "rollouts/test_numerics.py": "scanned_experts|engine_samples|equal_numerics|other_numerics"
                                 "|only_attention|scales_of_their_own",
    "rollouts/test_sampler.py": "eight_devices|row_depends_on_nothing|greedy_is_the_arg_max",
    "papers/soft_tokens/test_soft_rollouts.py": r"\[end_ids[12]|without_noise_is_greedy"
                                     r"|itself\[(hard|fuzzy)"
                                      r"|close_and_others|answer\[.*hard|scores\[hard",
    "rollouts/server/test_server_sampler.py": r"again\[(?!NaN)|bounded|pruned|without_control"
                                              "|does_not_load|believing",
    "rollouts/test_turns.py": "compiles_no_more|equals_the_loop_without_a_cache"
                              "|last_call_is_not_run|eight_devices|comparison_rejects",
    "runs/test_start_params.py": None,
    "grading/test_answer_pairs.py": r"pairs\[math",
    "sandbox/test_hostile.py": "busy loop",
    "runs/test_bad_input.py": "command",
    "runs/test_command_line.py": "commands_refuse|help_shows",
    "runs/test_critic_of_a_plugin.py": "two_iterations",
    "runs/test_end_to_end.py": None,
    "runs/test_engines_run.py": "changes_nothing",
    "runs/test_evaluation_sets.py": "any_number_of_rows|evaluated_again|without_a_training_file"
                                 "|named_after|set_alone|left_out_where",
    "runs/test_every_preset.py": "twenty_steps|experts_train",
    "runs/test_gsm8k_with_python.py": None,
    "runs/test_iteration.py": "engine_samples_what|rows_with_tools|history_is_full",
    "papers/occ/test_mtp_run.py": "coefficient_that_it_had",
    "runs/test_overlap.py": "devices_that_only_sample|overlap_changes_nothing|wrong_batches"
                            "|last_iteration_begins|samples_the_lost_batch_again",
    "runs/test_overlap_run.py": None,
    "runs/test_packed_run.py": "memory_and_speed",
    "runs/test_resume.py": None,
    "runs/test_resume_tools.py": None,
    "runs/test_run.py": None,
    "runs/test_saved.py": "trains_the_adapters_alone|keeps_what_it_changed|computes_what_the_run"
                          "|from_an_adapter",
    "runs/test_sequence_run.py": "changes_nothing",
    "runs/test_server_run.py": None,
    "runs/test_shared_starts.py": "reads_no_section|runs_do_not_depend",
    "runs/test_stop_rules.py": "evaluation_ends|prunes_by_min_p|the_ratio_is_one",
    "runs/test_support_both_sides.py": None,
    "runs/test_tool_rows.py": r"gradient_does_not_read|tool_text_change_nothing\[(?!(ctpo|otb)\])",
    "runs/test_torn_run.py": None,
    "runs/test_watched_run.py": None,
    "grading/test_verifiers.py": "end_with_their_parent|killed_worker|number_of_workers"
                               "|starting_is_replaced|bounded_time",
    "papers/budgets/test_budgets.py": "small_run|climbs|finds_the_cheap",
    "papers/counting/test_counting.py": "small_run",
    "test_credit_table.py": "measured_again",
    "papers/critical_tokens/test_critical_tokens.py": "adapted_weights_only",
    "test_config.py": "on_the_command_line",
    "papers/judges/test_judges.py": "real_run",
    "test_length_bands.py": "real_run",
    "test_notebooks.py": "notebooks_run",
    "test_recipes.py": r"takes_every_preset\[(?!quickstart\])",
    "papers/soft_tokens/test_soft_tokens_table.py": "the_command",
    "test_types.py": None,
    "papers/tvm/test_tvm.py": "run_again",
    "training/test_devices.py": r"one_device\[(?!fsdp-tensor-dense|dense-fsdp-tensor)|rejected"
                                "|many_chunks|while_decoding|may_be_divided|gather_no",
    "training/test_meter.py": "no_rows|old_parameters|pruned_vocabulary|rows_without|spread_over"
                              "|meters_own_pass|serves_for_all_rows|trainers_numerics"
                              "|outside_the_scorers",
    "training/test_packing.py": "changes?_nothing|estimator_weights|eight_devices|wrong_ways"
                                r"|scores_are_those_of_padded_rows\[plain|its_neighbour"
                                "|same_shapes",
    "papers/critical_tokens/test_preference_training.py": "micro_batches|each_prefix",
    "training/test_train_step.py": "eight_devices|statistics_of_the_whole|current_policy_as_anchor"
                                   r"|micro_batches_change_nothing\[(minpro|gspo)"
                                   "|computed_per_micro_batch|unkept_and_void|sft_loss",
    "papers/tvm/test_value_model.py": "masked_labels|share_of_right_rows",
}

# Those that would take longer than all others together. `pytest -m processes` runs them.
PROCESSES = {
    "parallel/test_faults.py": r"go_on\[1-[248]",
    "parallel/test_runs.py": r"one_computes\[(?!2-4-(tools|dynamic|overlap)|4-2-plain)",
}


def pytest_sessionstart(session):
  """Before the workers start, which inherit the folder's name."""
  if not hasattr(session.config, "workerinput"):
    programs.shared_folder()


def pytest_sessionfinish(session):
  if not hasattr(session.config, "workerinput"):
    shutil.rmtree(programs.shared_folder(), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  for item in items:
    file = item.path.relative_to(HERE).as_posix()
    if file in SLOW and (SLOW[file] is None or re.search(SLOW[file], item.name)):
      item.add_marker(pytest.mark.slow)
    if file in PROCESSES and re.search(PROCESSES[file], item.name):
      item.add_marker(pytest.mark.processes)


@pytest.fixture
def compiled():
  """Programs compiled from here on, counted by name."""
  names = collections.Counter()

  def count(event, duration, fun_name="", **_):
    del duration
    if event == "/jax/core/compile/backend_compile_duration":
      names[fun_name] += 1

  jax.monitoring.register_event_duration_secs_listener(count)
  yield names
  jax.monitoring.unregister_event_duration_listener(count)
