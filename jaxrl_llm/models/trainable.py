"""The trained parameters: all of them, selected ones, or low-rank adapters on frozen weights.

A parameter's path is its keys joined by slashes: `blocks/0/attention/query`, or with scanned layers
`blocks/attention/query`. Trained and frozen parameters are two trees, and `merge` joins them into
the parameters that the model reads. A gradient, an optimizer state and a checkpoint of the trained
tree therefore hold nothing of the frozen one.

Source of the adapters: LoRA, arXiv 2106.09685.
"""

import dataclasses
import operator
import re

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, ParametersConfig
from jaxrl_llm.fields import refuse_unread
from jaxrl_llm.late import Late
from jaxrl_llm.models import mtp
from jaxrl_llm.models.layers import ADAPTABLE

merged_weight, adapted_matrices, logical_axes, initial = (
    Late(f"jaxrl_llm.models.adapters.{name}")
    for name in ("merged_weight", "adapted_matrices", "logical_axes", "initial"))
# Parts that no checkpoint brings, by the first key of their paths.
HEADS = ("value_head", mtp.NAME)
Keys = tuple  # keys of a leaf in the nested dict


@dataclasses.dataclass(frozen=True)
class Roles:
  """The trained leaves where `parameters.train` is not `all`.

  Attributes:
    selected: leaves that are trained themselves.
    adapted: leaves that get an adapter.
    head: the leaf of which some rows are trained, or None.
  """

  selected: tuple[Keys, ...] = ()
  adapted: tuple[Keys, ...] = ()
  head: Keys | None = None


def path(keys: Keys) -> str:
  """Returns the path of a leaf."""
  return "/".join(map(str, keys))


def roles(params, cfg: ParametersConfig) -> Roles:
  """Returns the roles of the leaves of `params` (arrays or shapes); `cfg.train` must not be `all`.

  Raises:
    ConfigError: a pattern matches nothing; a leaf has two roles; an adapted weight cannot have an
      adapter; a row does not exist; nothing would be trained; a head that no checkpoint brings
      would never be.
  """
  flat = flatten_dict(params)
  chosen_leaves = _matches("patterns", cfg.patterns, flat)
  # The module that predicts two tokens ahead is initialized at random, so all of it is trained.
  trunk = {keys: x for keys, x in flat.items() if keys[0] != mtp.NAME}
  adapter_leaves = _matches("lora_targets", cfg.lora_targets, trunk) if cfg.train == "lora" else ()
  head = _head(flat) if cfg.head_rows else None
  for keys in adapter_leaves:
    if keys[-1] not in ADAPTABLE or keys[0] == "value_head":
      raise ConfigError(
          f"parameters.lora_targets = {cfg.lora_targets}: {path(keys)} has no adapter; the last "
          f"part of a path must be one of {', '.join(ADAPTABLE)}. Fix: a narrower expression.")
  chosen, adapters = set(chosen_leaves), set(adapter_leaves)
  conflicts = (chosen & adapters) | ({head} & (chosen | adapters))
  if conflicts:
    raise ConfigError(
        f"parameters: {path(min(conflicts, key=path))} is named twice among patterns, lora_targets "
        f"and "
        "head_rows. Fix: name it in one of them.")
  if head is not None:
    _check_rows(cfg.head_rows, flat[head].shape[1 if head == ("head",) else 0])
  if cfg.train == "selected" and not chosen_leaves and head is None:
    raise ConfigError(
        "parameters.train = 'selected' with neither patterns nor head_rows: nothing would be "
        f"trained. Fix: parameters.patterns; the paths are {_first_paths(flat)}.")
  heads = [keys for keys in flat if keys[0] in HEADS and keys not in chosen_leaves]
  if heads:
    raise ConfigError(
        f"parameters.patterns = {cfg.patterns}: {path(heads[0])} would never be trained, and "
        f"would stay at its initial value. Fix: add {heads[0][0]!r} to parameters.patterns.")
  return Roles(chosen_leaves, adapter_leaves, head)


def _head(flat: dict) -> Keys:
  """Returns the leaf that holds the output head."""
  return ("head",) if ("head",) in flat else ("embedding",)


def check(cfg: ParametersConfig, model) -> None:
  """Checks the config against the model.

  Raises:
    ConfigError: as `roles`, or `cfg` sets something that `cfg.train` does not read.
  """
  refuse_unread(cfg, "parameters.")
  if cfg.train != "all":
    roles(model.shapes(), cfg)


def _matches(field: str, patterns: tuple[str, ...], flat: dict) -> tuple[Keys, ...]:
  """Returns the leaves whose path a pattern matches part by part: `blocks/1` does not match
  blocks/10.
  """
  matches = []
  for pattern in patterns:
    try:
      expression = re.compile(rf"(?:^|/)(?:{pattern})(?:/|$)")
    except re.error as error:
      raise ConfigError(
          f"parameters.{field} = {pattern!r} is no regular expression: {error}. "
          "Fix: its syntax, that of Python's re.") from error
    hits = [keys for keys in flat if expression.search(path(keys))]
    if not hits:
      raise ConfigError(
          f"parameters.{field} = {pattern!r} matches no parameter. Fix: an expression over whole "
          f"parts of the paths {_first_paths(flat)}.")
    matches += hits
  return tuple(dict.fromkeys(matches))


def _first_paths(flat: dict, count: int = 12) -> str:
  """Returns the first paths, for an error message."""
  names = [path(keys) for keys in flat]
  more = f" and {len(names) - count} more" if len(names) > count else ""
  return ", ".join(names[:count]) + more


def _check_rows(rows: tuple[int, ...], vocab_size: int) -> None:
  bad = [row for row in rows if not 0 <= row < vocab_size or rows.count(row) > 1]
  if bad:
    raise ConfigError(
        f"parameters.head_rows = {rows}: {bad[0]} is repeated or no token id. Fix: different ids "
        f"from 0 to {vocab_size - 1}.")


def split(params, cfg: ParametersConfig, key: jax.Array | None = None) -> tuple[dict, dict | None]:
  """Returns (trained, frozen) trees of nested dicts; with `all`, (params, None) without a copy.

  Frozen leaves keep their dtype. The entries of `trained`, each present only if not empty, are

    selected    the selected leaves, f32
    lora        {"a": [.., fan_in, r], "b": [.., r, fan_out]} at each adapted leaf, f32; a is
                uniform in +-1/sqrt(fan_in), PEFT's default, and b is 0
    head_rows   [rows, D] f32, rows of the output head. Rows of a tied head are rows of the
                embedding, so that training them changes the input side too.

  Args:
    params: parameters of the model.
    cfg: what to train.
    key: for the adapters; consumed. An adapter does not depend on which other leaves have one.
  """
  if cfg.train == "all":
    return params, None
  leaf_roles, flat = roles(params, cfg), flatten_dict(params)
  chosen_leaves = {keys: _to_f32(flat[keys]) for keys in leaf_roles.selected}
  adapters = {
      keys: initial(keys, flat[keys].shape, cfg.lora_rank, key) for keys in leaf_roles.adapted
  }
  rows = None
  if leaf_roles.head is not None:
    ids, head = jnp.asarray(cfg.head_rows, jnp.int32), flat[leaf_roles.head]
    rows = _to_f32(head[:, ids].T if leaf_roles.head == ("head",) else head[ids])
  return _trained(chosen_leaves, adapters, rows), _frozen(flat, leaf_roles)


def _trained(chosen_leaves: dict, adapters: dict, head_rows) -> dict:
  """Returns the trained tree, from leaves by their keys and the rows of the head, or None."""
  entries = {}
  if chosen_leaves:
    entries["selected"] = unflatten_dict(chosen_leaves)
  if adapters:
    entries["lora"] = unflatten_dict(adapters)
  if head_rows is not None:
    entries["head_rows"] = head_rows
  return entries


def _frozen(flat: dict, leaf_roles: Roles) -> dict:
  """Returns the frozen tree, from all leaves by their keys."""
  return unflatten_dict({keys: x for keys, x in flat.items() if keys not in leaf_roles.selected})


def frozen_of(params, cfg: ParametersConfig):
  """Returns the frozen tree of `split`, without computing the trained one."""
  if cfg.train == "all":
    return None
  return _frozen(flatten_dict(params), roles(params, cfg))


def axes_of(axes, shapes, cfg: ParametersConfig) -> tuple:
  """Returns logical axes of the trees of `split`.

  Args:
    axes: logical axes of the parameters, a tuple of names at each leaf.
    shapes: shapes of the parameters.
    cfg: what to train.
  """
  if cfg.train == "all":
    return axes, None
  leaf_roles, flat = roles(shapes, cfg), flatten_dict(axes)
  chosen_leaves = {keys: flat[keys] for keys in leaf_roles.selected}
  adapters = {keys: logical_axes(keys, flat[keys]) for keys in leaf_roles.adapted}
  rows = None if leaf_roles.head is None else ("head_rows", "embed")
  return _trained(chosen_leaves, adapters, rows), _frozen(flat, leaf_roles)


def _to_f32(x):
  """Returns x in at least f32."""
  return jnp.asarray(x, jnp.promote_types(x.dtype, jnp.float32))


def merge(trained, frozen, cfg: ParametersConfig):
  """Returns the parameters that the model reads: W + (alpha / r) a b in f32 where there is an
  adapter.

  All other leaves are the same arrays. An adapter with b = 0 changes no value.
  """
  if cfg.train == "all":
    return trained
  return _assemble(trained, frozen, _computed(trained, _bases(trained, frozen), cfg))


def with_adapters(trained, frozen, cfg: ParametersConfig):
  """Returns `merge` for a loss: a block's matrix and its adapter stay separate (adapters.Adapted);
  router, head and matrices of experts are merged all the same.
  """
  if cfg.train == "all":
    return trained
  lora, scale = flatten_dict(trained.get("lora", {})), cfg.lora_alpha / cfg.lora_rank
  matrices = adapted_matrices(lora, flatten_dict(frozen), scale) if lora else {}
  rest = {keys: x for keys, x in lora.items() if keys[:-1] not in matrices}
  merged = merge(trained | {"lora": unflatten_dict(rest)}, frozen, cfg)
  return unflatten_dict(flatten_dict(merged) | matrices)


def make_merge(model, cfg: ParametersConfig, mesh, *, adapters: bool = True):
  """Returns `merge` on a mesh, as a function of anything with `params` (trained) and `frozen`.

  With `adapters` False it leaves the adapters out and returns the parameters underneath.

  Only the leaves that an adapter or trained rows change are computed; the others are the same
  arrays.
  """
  if cfg.train == "all":
    return operator.attrgetter("params")
  laid_out = flatten_dict(parallel.param_shardings(model, mesh))

  @jax.jit
  def merge_parameters(trained, bases):
    computed = flatten_dict(_computed(trained, bases, cfg))
    return unflatten_dict({
        keys: jax.lax.with_sharding_constraint(x, laid_out[keys]) for keys, x in computed.items()
    })

  def merged(state):
    trained = state.params
    if not adapters:
      trained = {name: entry for name, entry in trained.items() if name != "lora"}
    computed = merge_parameters(trained, _bases(trained, state.frozen))
    return _assemble(trained, state.frozen, computed)

  return merged


def _bases(trained, frozen) -> dict:
  """Returns the frozen leaves to which an adapter or trained rows are applied."""
  flat = flatten_dict(frozen)
  changed = {keys[:-1] for keys in flatten_dict(trained.get("lora", {}))}
  if "head_rows" in trained:
    changed.add(_head(flat))
  return unflatten_dict({keys: flat[keys] for keys in changed})


def _computed(trained, bases, cfg: ParametersConfig) -> dict:
  """Returns the leaves of `bases` with adapters and trained rows applied, f32."""
  flat, adapters = flatten_dict(bases), flatten_dict(trained.get("lora", {}))
  scale, out = cfg.lora_alpha / cfg.lora_rank, {}
  for keys, leaf in flat.items():
    if (*keys, "a") in adapters:
      out[keys] = merged_weight(leaf, adapters[*keys, "a"], adapters[*keys, "b"], scale)
    else:
      ids = jnp.asarray(cfg.head_rows, jnp.int32)
      rows, head = trained["head_rows"], _to_f32(leaf)
      out[keys] = head.at[:, ids].set(rows.T) if keys == ("head",) else head.at[ids].set(rows)
  return unflatten_dict(out)


def _assemble(trained, frozen, computed) -> dict:
  leaves = flatten_dict(frozen) | flatten_dict(trained.get("selected", {}))
  return unflatten_dict(leaves | flatten_dict(computed))


def shapes_of(model, cfg: ParametersConfig) -> tuple:
  """Returns shapes of the trees of `split` for a model with f32 parameters."""
  # The key is made inside, so that nothing is compiled.
  return jax.eval_shape(lambda params: split(params, cfg, jax.random.key(0)), model.shapes())


def shardings(model, cfg: ParametersConfig, mesh) -> tuple:
  """Returns the NamedSharding of each leaf of the trees of `split`."""

  def sharding(x, axes):
    return NamedSharding(mesh, parallel.spec(axes, x.shape, mesh))

  axes = axes_of(model.logical_axes(), model.shapes(), cfg)
  return jax.tree.map(sharding, shapes_of(model, cfg), axes)
