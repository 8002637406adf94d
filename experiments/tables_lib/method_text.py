"""A method by a short text: `[label@][file.py:]name[?key=value&key=value ...]`.

  gspo                             a preset
  seq_is?cap=2                     an estimator and a number of it
  mine@ideas/estimator.py:mine     an estimator that a plugin registers, with a label
  reinforce?advantage=grpo         a preset with another advantage
"""

import dataclasses

from jaxrl_llm.config import ConfigError, load_plugins
from jaxrl_llm.fields import did_you_mean
from jaxrl_llm.objective import estimators
from jaxrl_llm.presets import PRESETS

# Keys without a dot that are not numbers of the estimator, and the keys that they abbreviate.
SHORT = {"advantage": "advantage.name", "aggregation": "aggregation.name",
         "anchor": "updates.anchor", "shaping": "shaping.name", "transform": "transform.name"}


@dataclasses.dataclass(frozen=True)
class MethodText:
  """The parts of a text.

  Attributes:
    label: the text before the `@`, "" without one.
    plugin: file that registers the estimator, "" for one of the package.
    name: name of a preset or an estimator.
    options: (config key, value as it is written), in their order.
  """

  label: str
  plugin: str
  name: str
  options: tuple[tuple[str, str], ...]

  @property
  def is_preset(self) -> bool:
    """Returns whether the name is a preset's; a name with a plugin is an estimator's."""
    return not self.plugin and self.name in PRESETS


def split(text: str) -> MethodText:
  """Returns the parts of a text.

  Raises:
    ConfigError: an option is not of the form key=value.
  """
  label, _, remainder = text.rpartition("@")
  body, _, options = remainder.partition("?")
  plugin, _, name = body.rpartition(":")
  pairs = tuple(_option(text, pair) for pair in options.split("&") if pair)
  return MethodText(label, plugin, name, pairs)


def load(method: MethodText) -> None:
  """Loads the plugin.

  Raises:
    ConfigError: the file is not there or breaks off, or there is no such preset or estimator.
  """
  if method.plugin:
    load_plugins((method.plugin,))
  name = method.name
  if method.is_preset or name in estimators.names():
    return
  names = [*PRESETS, *estimators.names()]
  raise ConfigError(f"method {name!r}: neither a preset ({', '.join(PRESETS)}) nor an estimator "
                    f"({', '.join(estimators.names())}).{did_you_mean(name, names)}")


def _option(text: str, pair: str) -> tuple[str, str]:
  """Returns the config key and the value of `key=value`."""
  key, equals, value = pair.partition("=")
  if not equals or not key:
    raise ConfigError(f"{text!r}: {pair!r}: key=value was expected")
  return SHORT.get(key, key if "." in key else f"estimator.{key}"), value
