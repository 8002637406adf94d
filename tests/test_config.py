"""Every key of a config: read under its condition and refused otherwise, from files and flags."""

import copy
import dataclasses
import functools
import json
import typing
from pathlib import Path

import pytest
from command_configs import config_of

from jaxrl_llm import config as config_lib
from jaxrl_llm import fields
from jaxrl_llm.config import Config, ConfigError, convert, from_dict
from jaxrl_llm.registry import Choice
from jaxrl_llm.rollouts import environment, tools
from jaxrl_llm.wiring import setup

ROOT = Path(__file__).parent.parent
NAME = "<name>"  # of a section whose name the user chooses
TINY = f"--config={ROOT / 'tests/runs/tiny.py'}:grpo"
OLD = json.loads((ROOT / "tests/runs/old_config.json").read_text())


@dataclasses.dataclass(frozen=True)
class Key:
  """A key of the config: its field, its section's prefix, and the method that owns it, if any."""

  prefix: str
  field: dataclasses.Field
  method: tuple[str, str] | None = None  # (key of the method's name, name)

  @property
  def full(self) -> str:
    return self.prefix + self.field.name


def walk(cls=Config, prefix: str = "", method=None):
  """Yields a Key for each option of a section, of those in it, and of its methods' numbers."""
  hints = typing.get_type_hints(cls)
  for name, field in fields.options(cls).items():
    if "sections" in field.metadata:
      yield from walk(field.metadata["sections"], f"{prefix}{name}.{NAME}.", method)
    elif dataclasses.is_dataclass(hints[name]):
      yield from walk(hints[name], f"{prefix}{name}.", method)
    else:
      yield Key(prefix, field, method)
  if issubclass(cls, Choice):
    for name in cls.table.names():
      named = "name" in fields.options(cls)  # otherwise all methods are read
      yield from walk(cls.table[name].numbers, prefix, (prefix + "name", name) if named else method)


# --- conditions

# Conditions on properties, which follow from several keys.
SWITCHED_ON = {"has_critic": {"advantage.name": "gae"},
               "has_mtp": {"plugins": ("experiments.papers.occ",), "term.name": "mtp_ce"},
               "vocabulary.rules": {"vocabulary.top_k": 3},
               "samples_heldout": {"evaluation.samples": 4},
               "reads_teacher": {"advantage.name": "reverse_kl"},
               "teacher.several": {"advantage.name": "reverse_kl",
                                   "teacher.pretrained": "math=x,code=y"}}


def conditions():
  for key in walk():
    for number, condition in enumerate(key.field.metadata["when"]):
      yield pytest.param(key, condition, id=f"{key.method or ''}{key.full}-{number}")


def another(field: dataclasses.Field):
  """Returns an allowed value of an option that is not its default."""
  meta, default = field.metadata, field.default
  if meta["choices"]:
    return next(choice for choice in meta["choices"] if choice != default)
  if isinstance(default, bool):
    return not default
  if isinstance(default, str):
    return default + "x"
  if isinstance(default, tuple):
    return (*default, {str: "x", int: 1}[meta["of"]])
  if default is None:
    return max(meta["low"] or 0, 1)
  above = meta["high"] is None or default + 1 <= meta["high"]
  return default + 1 if above else type(default)(default / 2) if default else meta["low"]


def absolute(condition: fields.When, key: Key) -> str:
  return key.prefix + condition.key[1:] if condition.key.startswith(".") else condition.key


def switched(condition: fields.When, key: Key, on: bool) -> dict:
  """Returns the keys to set so that a condition holds, or does not."""
  full = absolute(condition, key)
  if full in SWITCHED_ON:
    return SWITCHED_ON[full] if on else {}
  default = next(k.field.default for k in walk() if k.full == full)
  if condition.above is not None:
    return {full: int(condition.above) + on}
  if condition.values:
    other = next(k for k in walk() if k.full == full).field
    off = other.default if other.default not in condition.values else another(other)
    return {full: condition.values[0] if on else off}
  if isinstance(default, str):
    return {full: "x" if on else ""}
  if default is None:
    return {full: 1 if on else None}
  return {full: type(default)(on)}


def unread_keys(values: dict) -> set[str]:
  """Returns the keys that `check` finds unread in a config of flat keys; a set is named `some`."""
  cfg = config_lib.fill(from_dict(nested(values)))
  sections = [("", cfg)]
  keys = set()
  for prefix, section in sections:
    for name, field in fields.options(type(section)).items():
      if "sections" in field.metadata:
        sections += [(f"{prefix}{name}.{key}.", item) for key, item in getattr(section, name)]
    keys |= {prefix + name for name, _ in fields.unread(section, prefix, cfg)}
    inner = {name: getattr(section, name) for name in fields.options(type(section))}
    sections += [(f"{prefix}{name}.", item) for name, item in inner.items()
                 if dataclasses.is_dataclass(item)]
    if isinstance(section, Choice):
      sections.append((prefix, section.table.numbers(section)))
  return {key.replace("sets.some.", f"sets.{NAME}.") for key in keys}


def nested(flat: dict) -> dict:
  out = {}
  for key, value in flat.items():
    *sections, leaf = key.replace(NAME, "some").split(".")
    functools.reduce(lambda tree, name: tree.setdefault(name, {}), sections, out)[leaf] = value
  return out


@pytest.fixture
def other_names():
  """Registers the names that `another` makes of the defaults of tool.name and environment.name."""
  tools.register("taskx")(lambda text, cfg: text)
  environment.register("toolx")(lambda *_: None)


@pytest.mark.usefixtures("other_names")
@pytest.mark.parametrize("key, condition", list(conditions()))
def test_an_option_without_its_condition_is_refused(key, condition):
  values = dict([key.method]) if key.method else {}
  for other in key.field.metadata["when"]:
    values |= switched(other, key, on=True)
  values |= {key.full: another(key.field)}
  assert key.full not in unread_keys(values), "all conditions hold"
  values |= switched(condition, key, on=False)
  if absolute(condition, key) in SWITCHED_ON:
    for name in SWITCHED_ON[absolute(condition, key)]:
      del values[name]
  assert key.full in unread_keys(values)
  with pytest.raises(ConfigError, match="it is read only with"):
    config_lib.check(config_lib.fill(from_dict(nested(values))))


# --- the listing of a run


def listed(cfg) -> set[str]:
  return {line.split(" = ")[0] for line in config_lib.describe(cfg).splitlines()
          if line and not line.startswith("#")}


def test_the_listing_shows_a_methods_keys_only_where_it_is_chosen():
  plain = listed(config_lib.Config())
  assert "estimator.clip_low" in plain and "server.url" in plain
  hidden = ("server.api", "term.", "transform.", "task.data")
  assert {key for key in plain if key.startswith(hidden)} == {"term.name", "transform.name"}
  chosen = listed(from_dict({"estimator": {"name": "ctpo"}, "transform": {"name": "ess"},
                             "server": {"url": "http://x"}}))
  assert {"estimator.log_low", "transform.reference", "server.api"} <= chosen
  assert "estimator.log_low" not in plain and "transform.reference" not in plain


def test_the_listing_of_a_run_has_what_is_read_and_its_values():
  """`unread` is the other side of it: a key that is not listed is refused if it is set."""
  keys = config_lib.keys()
  assert listed(None) == set(keys) == {key.full for key in walk()}
  assert len(set(keys)) == len(keys)
  cfg = from_dict({"rollout": {"slots": 4}, "updates": {"token_budget": 96}})
  lines = config_lib.describe(cfg)
  assert "rollout.slots = 4 " in lines and "rollout.chunk = " in lines
  assert "updates.micro_batches = " not in lines


@pytest.mark.parametrize("budget, bin_tokens", [
    (0, 9088), (9088, 9088), (9216, 9216), (2 * 9088, 9088), (3 * 9216 + 127, 9216)])
def test_bins_of_long_rows_take_the_budget(budget, bin_tokens):
  cfg = from_dict({"rollout": {"max_prompt_tokens": 1024, "max_new_tokens": 8000},
                   "updates": {"token_budget": budget}})
  assert cfg.bin_tokens == bin_tokens
  assert not budget or budget // cfg.bin_tokens == budget // 9088  # no fewer bins for that


# --- sections by name


def test_sets_are_named_in_files_and_dicts():
  config = config_lib.base_config()
  config.evaluation.sets.b.path = "b.jsonl"
  config.evaluation.sets.a = {"path": "a.jsonl", "prompt": {"style": "completion"}}
  config.update_from_flattened_dict({"evaluation.sets.b.samples": 4})
  cfg = from_dict(copy.deepcopy(config))
  assert [name for name, _ in cfg.evaluation.sets] == ["a", "b"]
  a, b = (one for _, one in cfg.evaluation.sets)
  assert (a.path, a.prompt.style, a.samples) == ("a.jsonl", "completion", None)
  assert (b.path, b.prompt.style, b.samples, b.problems) == ("b.jsonl", "task", 4, -1)
  assert from_dict(json.loads(json.dumps(config_lib.to_dict(cfg)))) == cfg and hash(cfg)
  assert config_lib.from_saved(config_lib.to_dict(cfg)) == cfg
  other = from_dict({"evaluation": {"sets": {"b": {"path": "b.jsonl", "samples": 4}, "a": {
      "path": "a.jsonl", "prompt": {"style": "completion"}}}}})
  assert other == cfg, "the order of names does not matter"
  assert from_dict(config_lib.base_config()).evaluation.sets == ()
  text = config_lib.describe()
  assert all(f"\nevaluation.sets.{NAME}.{key} = " in text for key in ("path", "prompt.style"))


def test_sets_are_named_on_the_command_line():
  cfg = config_of(TINY, "--config.evaluation.sets.aime.path=a.jsonl",
                  "--config.evaluation.sets.aime.mapping=aime",
                  "--config.evaluation.sets.math_500.prompt.style=completion",
                  "--config.evaluation.sets.aime.samples=32")
  assert [(name, one.path, one.mapping, one.samples, one.prompt.style)
          for name, one in cfg.evaluation.sets] == [
              ("aime", "a.jsonl", "aime", 32, "task"),
              ("math_500", "", "auto", None, "completion")]


@pytest.mark.parametrize("key, value, message", [
    ("aime.mappng", "x", r"unknown key evaluation\.sets\.aime\.mappng; nearest known key: "
     r"evaluation\.sets\.aime\.mapping\."),
    ("aime.prompt.sufix", "x", r"nearest known key: evaluation\.sets\.aime\.prompt\.suffix\."),
    ("aime.samples", -1, r"evaluation\.sets\.aime\.samples = -1: out of range"),
    ("aime.too_long", "dorp", r"sets\.aime\.too_long = 'dorp': .* Did you mean 'drop'\?"),
    ("aime", 3, r"evaluation\.sets\.aime = 3: a section of keys was expected"),
])
def test_wrong_keys_and_values_of_a_set_are_refused(key, value, message):
  with pytest.raises(ConfigError, match=message):
    config_of(TINY, f"--config.evaluation.sets.{key}={value}")


def test_names_of_sets_and_their_keys_are_checked():
  with pytest.raises(ConfigError, match=r"the name 'a/b'; allowed are letters, digits"):
    from_dict({"evaluation": {"sets": {"a/b": {}}}})
  with pytest.raises(ConfigError, match=r"evaluation\.sets = 3: sections by name were expected"):
    from_dict({"evaluation": {"sets": 3}})
  with pytest.raises(ConfigError, match=r"sets\.a\.prompt\.suffix = 'x' with .*style = 'task'"):
    config_lib.check(config_lib.fill(from_dict(
        {"evaluation": {"sets": {"a": {"prompt": {"suffix": "x"}}}}})))


# --- flags

PLUGIN = """
import jax.numpy as jnp
from jaxrl_llm.objective.estimators import common
from jaxrl_llm.objective.estimators.registry import register


@register("gained", gain=1.0)
def gained(log_probs, anchor_log_probs, advantages, mask, cfg):
  weight = jnp.full_like(log_probs, cfg.gain)
  loss = common.score_function_surrogate(weight, log_probs, advantages, mask)
  return common.output(loss, {})
"""


@pytest.mark.parametrize("places", [(0, 1, 2), (2, 0, 1)], ids=["plugin first", "plugin last"])
def test_numbers_of_a_plugin_on_the_command_line(tmp_path, places):
  path = tmp_path / "gained.py"
  path.write_text(PLUGIN)
  arguments = [f"--config.plugins={path}", "--config.estimator.name=gained"]
  cfg = config_of(TINY, *([*arguments, "--config.estimator.gain=3"][place] for place in places))
  assert setup.resolve(cfg).estimator.gain == 3.0
  with pytest.raises(ConfigError, match=r"estimator\.gian.* estimator\.gain"):
    config_of(TINY, *arguments, "--config.estimator.gian=3")


# --- config.json of the version before methods owned their numbers


def test_an_old_file_is_read():
  critic, otb = config_lib.from_saved(OLD["critic"]), config_lib.from_saved(OLD["otb"])
  assert critic.has_critic and not otb.has_critic
  assert dict(critic.advantage.given) == {"gamma": 1.0, "lam": 1.0, "whiten": True}
  assert set(dict(otb.advantage.given)) == {"weight", "granularity", "importance", "zero_tail",
                                            "leave_one_out"}
  assert dict(critic.estimator.given) == {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}
  assert dict(critic.task.given) == {"num_terms": 2, "worked_share": 0.0}
  assert critic.rollout.prompts == 16 and critic.optimizer.learning_rate == 0.01
  for cfg in (critic, otb):
    assert config_lib.check(config_lib.fill(cfg)), "nothing is left that nobody reads"
    assert from_dict(json.loads(json.dumps(config_lib.to_dict(cfg)))) == cfg


def test_a_removed_key_is_read_in_an_old_file_and_refused_in_a_new_one():
  content = {**OLD["otb"], "rollout": {**OLD["otb"]["rollout"], "compaction": 2}}
  assert config_lib.from_saved(content) == config_lib.from_saved(OLD["otb"])
  with pytest.raises(ConfigError, match=r"^rollout\.compaction is no key any more: .*Fix: remove"):
    from_dict({"rollout": {"compaction": 2}})


def test_the_section_of_a_task_that_left_is_read_only_where_it_was_chosen():
  """Nothing read it in other runs; a run of that task needs the plugin, which reads it."""
  task = {**OLD["otb"]["task"], "countdown": {"numbers": 5}}
  assert config_lib.from_saved({**OLD["otb"], "task": task}) == config_lib.from_saved(OLD["otb"])
  chosen = config_lib.from_saved({"plugins": ["experiments.tasks.countdown"],
                                  "task": {"name": "countdown", "countdown": {"numbers": 5}}})
  assert dict(chosen.task.given)["countdown"].numbers == 5


@pytest.mark.parametrize("section", ["rollout", "estimator", "advantage"])
def test_an_old_file_with_an_unknown_key_is_refused(section):
  content = {**OLD["critic"], section: {**OLD["critic"][section], "no_such_key": 1}}
  with pytest.raises(ConfigError, match=rf"^unknown key {section}\.no_such_key; .*") as error:
    config_lib.from_saved(content)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("pip", [True, False])
def test_a_message_names_a_command_that_reaches_the_interpreter(monkeypatch, pip):
  monkeypatch.setattr(fields.importlib.util, "find_spec", lambda name: pip and name == "pip")
  monkeypatch.setattr(fields.sys, "executable", "/a b/python")
  wanted = "pip install" if pip else "uv pip install --python '/a b/python'"
  assert fields.installing("math") == f"{wanted} -e '.[math]'"


@pytest.mark.parametrize("values, key", [
    ({"num_generations": 4}, "rollout.group_size"),
    ({"optimizer": {"lr": 1e-3}}, "optimizer.learning_rate"),
    ({"rollout": {"n": 4}}, "rollout.group_size"),
    ({"max_completion_length": 9}, "rollout.max_new_tokens"),
])
def test_names_of_other_libraries_lead_to_ours(values, key):
  """By spelling alone, the nearest known key of the second is optimizer.b2."""
  with pytest.raises(ConfigError, match=f"nearest known key: {key}[.]"):
    from_dict(values)
  assert {*convert.OTHERS.values()} <= {*convert.keys()}
