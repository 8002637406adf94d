"""Which parameters are trained: all of them, selected ones, or low-rank adapters on frozen weights.

A parameter's path is its keys joined by slashes, `blocks/0/attention/query`
(`blocks/attention/query` where the layers are stacked and scanned). Trained and frozen parameters
are two trees; `merge` makes of them what the model reads, so that a gradient with respect to the
trained tree, an optimizer state and a checkpoint hold nothing of the frozen one.
"""

import dataclasses
import functools
import re
import zlib

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding

from jaxrl_llm import parallel
from jaxrl_llm.config import ConfigError, ParametersConfig
from jaxrl_llm.models.layers import MATRICES

# Weights that can have an adapter, as in `layers.MATRICES`.
ADAPTABLE = MATRICES | {"router": (1, 1), "head": (1, 1)}
LORA_ONLY = ("lora_rank", "lora_alpha", "lora_targets")
Keys = tuple  # keys of a leaf in the nested dict


@dataclasses.dataclass(frozen=True)
class Plan:
  """Leaves that are trained themselves, leaves that get an adapter, and the leaf whose rows are
  trained (or None).
  """

  selected: tuple[Keys, ...] = ()
  adapted: tuple[Keys, ...] = ()
  head: Keys | None = None


def path(keys: Keys) -> str:
  return "/".join(map(str, keys))


def plan(params, cfg: ParametersConfig) -> Plan:
  """Roles of the leaves of `params` (arrays or shapes) where not all are trained.

  Raises:
    ConfigError: a pattern matches nothing, roles overlap, a weight has no adapter, a row does not
    exist, a setting is
      not read, or nothing would be trained.
  """
  flat = flatten_dict(params)
  selected = _matches("patterns", cfg.patterns, flat)
  adapted = _matches("lora_targets", cfg.lora_targets, flat) if cfg.train == "lora" else ()
  head = (("head",) if ("head",) in flat else ("embedding",)) if cfg.head_rows else None
  for keys in adapted:
    if keys[-1] not in ADAPTABLE or keys[0] == "value_head":
      raise ConfigError(
          f"parameters.lora_targets = {cfg.lora_targets}: {path(keys)} has no adapter; the last "
          "part of "
          f"a path must be one of {', '.join(ADAPTABLE)}. Fix: a narrower expression.")
  both = (set(selected) & set(adapted)) | ({head} & (set(selected) | set(adapted)))
  if both:
    raise ConfigError(
        f"parameters: {path(min(both, key=path))} is named twice among patterns, lora_targets and "
        "head_rows. Fix: one of them only.")
  if head is not None:
    _check_rows(cfg.head_rows, flat[head].shape[1 if head == ("head",) else 0])
  if cfg.train == "selected" and not selected and head is None:
    raise ConfigError(
        "parameters.train = 'selected' with neither patterns nor head_rows: nothing would be "
        "trained. "
        f"Fix: parameters.patterns; the paths are {_some(flat)}.")
  critic = [keys for keys in flat if keys[0] == "value_head" and keys not in selected]
  if critic:
    raise ConfigError(
        f"parameters.patterns = {cfg.patterns}: {path(critic[0])} starts from random values and "
        "would "
        "never be trained. Fix: add 'value_head' to parameters.patterns.")
  return Plan(selected, adapted, head)


def check(cfg: ParametersConfig, model) -> None:
  """Raises ConfigError as `plan` does, and where train = all comes with a setting that it does not
  read.
  """
  default = ParametersConfig()
  unread = ([] if cfg.train != "all" else ["patterns", "head_rows"]) + ([] if cfg.train == "lora"
                                                                        else [*LORA_ONLY])
  for name in unread:
    if getattr(cfg, name) != getattr(default, name):
      raise ConfigError(
          f"parameters.{name} = {getattr(cfg, name)!r}: parameters.train = {cfg.train!r} does not "
          "read "
          "it. Fix: remove it, or parameters.train=lora.")
  if cfg.train != "all":
    # the key inside: an eager one compiles
    plan(jax.eval_shape(lambda: model.init(jax.random.key(0))), cfg)


def _matches(field: str, patterns: tuple[str, ...], flat: dict) -> tuple[Keys, ...]:
  """Leaves in whose path a pattern covers whole parts: `blocks/1` is no part of blocks/10."""
  found = []
  for pattern in patterns:
    try:
      expression = re.compile(rf"(?:^|/)(?:{pattern})(?:/|$)")
    except re.error as error:
      raise ConfigError(
          f"parameters.{field} = {pattern!r}: no regular expression ({error}).") from error
    hits = [keys for keys in flat if expression.search(path(keys))]
    if not hits:
      raise ConfigError(
          f"parameters.{field} = {pattern!r} matches no parameter. Fix: an expression over whole "
          "parts "
          f"of the paths {_some(flat)}.")
    found += hits
  return tuple(dict.fromkeys(found))


def _some(flat: dict, count: int = 12) -> str:
  names = [path(keys) for keys in flat]
  return ", ".join(
      names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")


def _check_rows(rows: tuple[int, ...], vocab_size: int) -> None:
  bad = [row for row in rows if not 0 <= row < vocab_size or rows.count(row) > 1]
  if bad:
    raise ConfigError(
        f"parameters.head_rows = {rows}: {bad[0]} is repeated or no token id. Fix: different ids "
        "from 0 "
        f"to {vocab_size - 1}.")


def split(params, cfg: ParametersConfig, key: jax.Array | None = None) -> tuple[dict, dict | None]:
  """(trained, frozen) trees of nested dicts; `all` gives (params, None), the same arrays.

  `trained` has entries `selected` (leaves, f32), `lora` (at each adapted leaf {"a": [.., fan_in,
  r], "b": [.., r, fan_out]}, f32) and `head_rows` [rows, D] f32, each where it is not empty. a is
  uniform in +-1/sqrt(fan_in), PEFT's default, and b is 0. Frozen leaves keep their dtype.

  `head_rows` are rows of the output head; where the head is tied they are rows of the embedding,
  and training them changes the input side too.

  Args:
    key: for the adapters; consumed. A leaf's adapter does not depend on which other leaves have
      one.
  """
  if cfg.train == "all":
    return params, None
  ids = jnp.asarray(cfg.head_rows, jnp.int32)
  rows = lambda keys, leaf: _master(leaf[:, ids].T if keys == ("head",) else leaf[ids])
  return _divide(params, plan(params, cfg), lambda keys, leaf: _master(leaf),
                 lambda keys, leaf: _new_adapter(keys, leaf.shape, cfg.lora_rank, key), rows)


def frozen_of(params, cfg: ParametersConfig):
  """The frozen tree of `split`: the same arrays, nothing computed."""
  if cfg.train == "all":
    return None
  return _divide(params, plan(params, cfg), *[lambda *_: None] * 3)[1]


def axes_of(axes, shapes, cfg: ParametersConfig) -> tuple:
  """Logical axes of the trees of `split`, from those of the parameters (tuples of names) and their
  shapes.
  """
  if cfg.train == "all":
    return axes, None

  def adapter(keys, names):
    batch, (inner, _) = _batch(keys, len(names)), ADAPTABLE[keys[-1]]
    return {
        "a": (*names[:batch], names[batch], "rank"),
        "b": (*names[:batch], "rank", names[batch + inner])
    }

  return _divide(axes, plan(shapes, cfg), lambda keys, names: names, adapter, lambda *_:
                 ("head_rows", "embed"))


def _divide(tree, roles: Plan, leaf, adapter, rows):
  """The trees of `split` with leaves made by three functions of (keys, leaf)."""
  flat = flatten_dict(tree)
  trained = {}
  if roles.selected:
    trained["selected"] = unflatten_dict({keys: leaf(keys, flat[keys]) for keys in roles.selected})
  if roles.adapted:
    trained["lora"] = unflatten_dict({keys: adapter(keys, flat[keys]) for keys in roles.adapted})
  if roles.head:
    trained["head_rows"] = rows(roles.head, flat[roles.head])
  return trained, unflatten_dict({
      keys: x for keys, x in flat.items() if keys not in roles.selected
  })


def _master(x):
  return jnp.asarray(x, jnp.promote_types(x.dtype, jnp.float32))


def _batch(keys: Keys, rank: int) -> int:
  return rank - sum(ADAPTABLE[keys[-1]])


def _new_adapter(keys: Keys, shape: tuple[int, ...], rank: int, key: jax.Array) -> dict:
  batch, (inner, _) = _batch(keys, len(shape)), ADAPTABLE[keys[-1]]
  size = lambda dims: functools.reduce(int.__mul__, dims, 1)
  fan_in, fan_out = size(shape[batch:batch + inner]), size(shape[batch + inner:])
  bound = fan_in**-0.5
  a = jax.random.uniform(jax.random.fold_in(key, zlib.crc32(path(keys).encode())),
                         (*shape[:batch], fan_in, rank), jnp.float32, -bound, bound)
  return {"a": a, "b": jnp.zeros((*shape[:batch], rank, fan_out), jnp.float32)}


def merge(trained, frozen, cfg: ParametersConfig):
  """The parameters that the model reads: W + (alpha / r) a b in f32 where there is an adapter.

  Leaves that nothing changes are the same arrays; an adapter with b = 0 changes no value.
  """
  if cfg.train == "all":
    return trained
  return _assemble(trained, frozen, _computed(trained, _bases(trained, frozen), cfg))


def make_merge(model, cfg: ParametersConfig, mesh):
  """`merge` for a mesh, of anything with `params` (trained) and `frozen`: a TrainState, a Start.

  Only leaves that an adapter or a row changes are computed; the others are the same arrays.
  """
  if cfg.train == "all":
    return lambda state: state.params
  laid_out = flatten_dict(parallel.param_shardings(model, mesh))

  @jax.jit
  def merge_parameters(trained, bases):
    computed = flatten_dict(_computed(trained, bases, cfg))
    return unflatten_dict({
        k: jax.lax.with_sharding_constraint(x, laid_out[k]) for k, x in computed.items()
    })

  return lambda state: _assemble(state.params, state.frozen,
                                 merge_parameters(state.params, _bases(state.params, state.frozen)))


def _bases(trained, frozen) -> dict:
  """Frozen leaves that trained ones change."""
  flat = flatten_dict(frozen)
  changed = {keys[:-1] for keys in flatten_dict(trained.get("lora", {}))}
  if "head_rows" in trained:
    changed.add(("head",) if ("head",) in flat else ("embedding",))
  return unflatten_dict({keys: flat[keys] for keys in changed})


def _computed(trained, bases, cfg: ParametersConfig) -> dict:
  flat, adapters = flatten_dict(bases), flatten_dict(trained.get("lora", {}))
  scale = cfg.lora_alpha / cfg.lora_rank
  out = {}
  for keys, leaf in flat.items():
    if (*keys, "a") in adapters:
      delta = jnp.matmul(adapters[*keys, "a"], adapters[*keys, "b"], precision="highest")
      out[keys] = _master(leaf) + scale * delta.reshape(leaf.shape)
    else:
      ids = jnp.asarray(cfg.head_rows, jnp.int32)
      rows, head = trained["head_rows"], _master(leaf)
      out[keys] = head.at[:, ids].set(rows.T) if keys == ("head",) else head.at[ids].set(rows)
  return unflatten_dict(out)


def _assemble(trained, frozen, computed):
  return unflatten_dict({
      **flatten_dict(frozen),
      **flatten_dict(trained.get("selected", {})),
      **flatten_dict(computed)
  })


def shapes_of(model, cfg: ParametersConfig) -> tuple:
  """Shapes of the trees of `split` for a model with f32 parameters."""
  return jax.eval_shape(lambda key: split(model.init(key), cfg, key), jax.random.key(0))


def shardings(model, cfg: ParametersConfig, mesh) -> tuple:
  """NamedSharding of each leaf of the trees of `split`."""
  axes = axes_of(model.logical_axes(), jax.eval_shape(model.init, jax.random.key(0)), cfg)
  return jax.tree.map(lambda x, a: NamedSharding(mesh, parallel.spec(a, x.shape, mesh)),
                      shapes_of(model, cfg), axes)
