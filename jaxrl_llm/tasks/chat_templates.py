"""Chat templates of checkpoints: rendered at a fixed date, and asked what they do.

A template is a program that somebody else wrote. It may read the clock, fail, leave out a message,
or end a turn with a token that ends no row.
"""

import datetime
import logging

from jinja2 import TemplateError

from jaxrl_llm.fields import ConfigError
from jaxrl_llm.tasks.encoding import encode

CLOCK = "strftime_now"  # the function by which templates read the clock
# Directives that a format may hold; %-d and the like are without a leading zero.
DIRECTIVES = tuple(f"%{mark}{letter}" for mark in ("-", "") for letter in "dmHIMSyj") + tuple(
    f"%{letter}" for letter in "aAbBcDefFGhklnpPrRsTtuUVwWxXYzZ")
PERCENT = "\0"  # in place of %% while directives are replaced
# Texts of the user, the assistant and the system in a trial.
USER, ASSISTANT, SYSTEM = "What is 1 plus 61?", "The sum is 62.", "Count with care."

Message = tuple[str, str]  # role and content
logger = logging.getLogger(__name__)


def dated(template: str, date: str) -> str:
  """Returns a template that takes `date`, at midnight, for the time of the clock.

  A macro before the template has the name of the function that would read the clock. It replaces
  each directive of the format by its value.

  Raises:
    ConfigError: no date of the form 2026-01-31.
  """
  try:
    day = datetime.datetime.strptime(date, "%Y-%m-%d")
  except ValueError as error:
    raise ConfigError(f"task.prompt.date = {date!r}: {error}. Fix: a date such as 2026-01-31."
                      ) from error
  if CLOCK not in template:
    return template
  values = [("%%", PERCENT), *((name, day.strftime(name)) for name in DIRECTIVES), (PERCENT, "%")]
  steps = "".join(f" | replace({name!r}, {value!r})" for name, value in values)
  # Jinja removes the line break after a block, so the line breaks of the template itself stay.
  return f"{{% macro {CLOCK}(format) %}}{{{{ format{steps} }}}}{{% endmacro %}}\n{template}"


def source(tokenizer) -> str:
  """Returns the text of the template; of several, the default one.

  Raises:
    ConfigError: the tokenizer has none, or several and none of them is the default.
  """
  template = getattr(tokenizer, "chat_template", None)
  if isinstance(template, dict) and "default" not in template and template:
    raise ConfigError(
        f"task.prompt.style = 'chat': {_whose(tokenizer)} has the chat templates "
        f"{', '.join(sorted(template))} and no default one. Fix: the one that is meant as "
        "chat_template.jinja in the folder of the checkpoint.")
  return tokenizer.get_chat_template()


def render(tokenizer, turns: list[Message], arguments: dict, date: str, *,
           tokenize: bool = True, prompt: bool = True):
  """Returns the ids of the turns up to where the assistant begins.

  Args:
    arguments: variables of the template.
    date: at which the template is rendered, if it reads the clock.
    tokenize: False: returns the text.
    prompt: False: without the beginning of the assistant's turn.

  Raises:
    ConfigError: the template fails, or refuses the messages.
  """
  messages = [{"role": role, "content": content} for role, content in turns]
  template = dated(source(tokenizer), date)
  try:
    out = tokenizer.apply_chat_template(messages, tokenize=tokenize, return_dict=False,
                                        chat_template=template, add_generation_prompt=prompt,
                                        **arguments)
    return list(out) if tokenize else out
  except Exception as error:  # whatever the expressions of a template raise
    roles = [role for role, _ in turns]
    if type(error) is TemplateError:  # raised by the template itself, by raise_exception
      what = f"refuses the messages {roles} with arguments {arguments}: {error}"
    else:
      what = f"fails on the messages {roles} with arguments {arguments}: " \
             f"{type(error).__name__}: {error}"
    raise ConfigError(f"task.prompt.style = 'chat': the chat template of {_whose(tokenizer)} "
                      f"{what}. Fix: {_fix(tokenizer, arguments)}.") from error


def _fix(tokenizer, arguments: dict) -> str:
  """Returns how a template that fails may be helped."""
  if "tools" in tokenizer.get_chat_template() and "tools" not in arguments:
    return ('task.prompt.arguments={"tools": []}, because it reads `tools`, of which there are '
            "none; or another template, chat_template.jinja in the folder of the checkpoint")
  return ("task.prompt.system or task.prompt.arguments, or another template, chat_template.jinja "
          "in the folder of the checkpoint")


def check(tokenizer, system: str, arguments: dict, date: str) -> None:
  """Refuses a template that leaves out the user's or the system's text, and says where one reads
  the clock or does not begin the assistant's turn.

  A template that fails in this trial passes: it may demand messages that the problems bring, and
  `render` names what is wrong with them.

  Args:
    system: the system message; empty: none.
  """
  if CLOCK in source(tokenizer):
    logger.warning("the chat template of %s reads the clock: it is rendered as of %s "
                   "(task.prompt.date)", _whose(tokenizer), date)
  turns = [("system", SYSTEM)] * bool(system) + [("user", USER)]
  begun = _try_render(tokenizer, turns, arguments, date, prompt=True)
  if begun is None:
    return
  for key, text in (("task.prompt.style = 'chat'", USER), ("task.prompt.system", SYSTEM)):
    if text not in begun and (text == USER or system):
      raise ConfigError(
          f"{key}: the chat template of {_whose(tokenizer)} leaves the text out of "
          f"{begun[:200]!r}; it may expect contents in parts. Fix: another template, "
          "chat_template.jinja in the folder of the checkpoint"
          + (", or no task.prompt.system." if text == SYSTEM else "."))
  full_text = _try_render(tokenizer, [*turns, ("assistant", ASSISTANT)], arguments, date)
  prefix = begun.rpartition(USER)[2]
  # [/INST] after the user's text says that the assistant begins; an end of turn does not.
  turn_end = "" if full_text is None else full_text.rpartition(ASSISTANT)[2].strip()
  no_generation_prompt = full_text is None or prefix.strip() in ("", turn_end)
  if no_generation_prompt and begun == _try_render(tokenizer, turns, arguments, date):
    logger.warning("the chat template of %s has no generation prompt: prompts end with %r after "
                   "the user's text, and nothing says that the assistant begins. Fix: "
                   "{%% if add_generation_prompt %%} in its chat_template.jinja",
                   _whose(tokenizer), prefix)


def _try_render(tokenizer, turns: list[Message], arguments: dict, date: str,
                prompt: bool = False) -> str | None:
  """Returns the text of the turns; None if the template fails."""
  try:
    text = render(tokenizer, turns, arguments, date, tokenize=False, prompt=prompt)
  except ConfigError:
    return None
  return text if isinstance(text, str) else None


def turn_end(tokenizer) -> int | None:
  """Returns the token with which the template ends the assistant's turn; None if it has none, or
  no template.
  """
  if not getattr(tokenizer, "chat_template", None):
    return None
  text = _try_render(tokenizer, [("user", USER), ("assistant", ASSISTANT)], {}, "2026-01-01")
  if text is None or ASSISTANT not in text:
    return None
  tail = text.rpartition(ASSISTANT)[2]
  ids = encode(tokenizer, tail)
  for tokens in (set(tokenizer.all_special_ids) | _special(tokenizer),
                 set(tokenizer.added_tokens_decoder)):
    marks = [token for token in ids if token in tokens]
    if marks:
      return marks[0]
  tail_ids = encode(tokenizer, tail.strip())
  return tail_ids[0] if len(tail_ids) == 1 else None


def _special(tokenizer) -> set[int]:
  return {token for token, entry in tokenizer.added_tokens_decoder.items() if entry.special}


def _whose(tokenizer) -> str:
  return getattr(tokenizer, "name_or_path", "") or "the tokenizer"
