"""What chat templates do that a run would not expect: the clock, tools, ends of turns, failures."""

import datetime
import json
import logging
from unittest import mock

import pytest
import transformers.utils.chat_template_utils as of_transformers
from test_prompts import CHATML, END, chat_tokenizer

from jaxrl_llm.config import ConfigError, DataConfig, PromptConfig, TaskConfig
from jaxrl_llm.tasks import chat_templates, make_task, tokenizer
from jaxrl_llm.tasks.prompts import make_prompter

BASE_END = "<|endoftext|>"
DATED = ("{{ 'Today is ' + (date_string if date_string is defined else "
         "strftime_now('%d %b %Y')) }}\n" + CHATML)
LLAMA2 = ("{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
          "{% else %} {{ m.content }} <|im_end|>{% endif %}{% endfor %}")


def prompted(template, **keys):
  tok = chat_tokenizer(template)
  return tok.decode(make_prompter(PromptConfig("chat", **keys), tok)("2+2?"))


class Later(datetime.datetime):

  @classmethod
  def now(cls, tz=None):
    return cls(2031, 1, 2)


@pytest.mark.parametrize("keys, date", [({}, "01 Jan 2026"),
                                        ({"date": "2024-07-26"}, "26 Jul 2024"),
                                        ({"arguments": '{"date_string": "x"}'}, "x")])
def test_a_template_that_reads_the_clock_gives_the_same_prompt_on_every_day(keys, date, caplog):
  with caplog.at_level(logging.WARNING):
    today = prompted(DATED, **keys)
  day = keys.get("date", PromptConfig().date)
  assert f"reads the clock: it is rendered as of {day} (task.prompt.date)" in caplog.text
  assert today.startswith(f"Today is {date}\n")
  with mock.patch.object(of_transformers, "datetime", Later):
    assert prompted(DATED, **keys) == today
    # What is rejected: the template as it is.
    plain = chat_tokenizer(DATED).apply_chat_template([{"role": "user", "content": "2+2?"}],
                                                      tokenize=False)
    assert plain.startswith("Today is 02 Jan 2031")


@pytest.mark.parametrize("format", ["%d %b %Y", "%-d %B, %A", "%y%m%d %j %%d %H:%M:%S %p", "%F|%e"])
def test_a_format_means_what_it_means_for_the_clock(format):
  macro = f"\n{{% macro day() %}}{{% set f='{format}' %}}{{{{ strftime_now(f) }}}}{{% endmacro %}}"
  text = chat_templates.render(chat_tokenizer(macro + "{{ day() }}\n" + CHATML), [("user", "x")],
                               {}, "2031-02-03", tokenize=False)
  expected = datetime.datetime(2031, 2, 3).strftime(format)
  assert text.startswith(f"\n{expected}\n<|im_start|>user"), "and nothing else changes"


@pytest.mark.parametrize("template, message", [
    ("{{ tools|length }}" + CHATML, r"fails on .*: TypeError: object of type 'NoneType' has no"),
    ("{% if not tools %}{{ raise_exception('tools, please') }}{% endif %}" + CHATML,
     "refuses the messages .*: tools, please"),
    ("{{ messages[7].content }}" + CHATML, r"fails on the messages \['user'\].*: UndefinedError"),
    ("{% for m in messages %}", "fails on the messages .*: TemplateSyntaxError"),
    ("{{ 1 / 0 }}" + CHATML, "fails on the messages .*: ZeroDivisionError"),
    ({"chat": CHATML, "tool_use": CHATML}, "the chat templates chat, tool_use and no default one"),
])
def test_a_template_that_fails_is_named(template, message):
  with pytest.raises(ConfigError, match=rf"task.prompt.style = 'chat': .*{message}") as error:
    prompted(template)
  assert "Fix: " in str(error.value)
  if "tools|length" in str(template):
    assert 'Fix: task.prompt.arguments={"tools": []}' in str(error.value)
    assert prompted(template, arguments='{"tools": []}').startswith("0<|im_start|>user\n2+2?")


def test_a_row_that_a_template_refuses_is_a_bad_row(tmp_path):
  rows = [{"prompt": [*({"role": role, "content": "c"} for role in roles),
                      {"role": "user", "content": str(len(roles))}],
           "reward_model": {"ground_truth": "1"}} for roles in ((), ("tool",), ("assistant",))]
  path = tmp_path / "x.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  template = "{% if messages[0].role == 'tool' %}{{ raise_exception('no') }}{% endif %}" + CHATML

  def task_of(bad_rows):
    data = DataConfig(path=str(path), mapping="dapo", bad_rows=bad_rows)
    cfg = TaskConfig("dataset", heldout_problems=0, prompt=PromptConfig("chat"), data=data)
    return make_task(cfg, 0, 1, tokenizer=chat_tokenizer(template))

  with pytest.raises(ConfigError, match=r"x.jsonl, line 2: .*refuses .*: no\. "):
    task_of("error")
  counts = task_of("drop").counts
  assert counts["kept"] == 2 and counts["bad"] == 1


@pytest.mark.parametrize("template, keys, message", [
    ("{% for m in messages %}{% for part in m.content %}{% if part.type == 'text' %}"
     "{{ part.text }}{% endif %}{% endfor %}{% endfor %}", {}, "leaves the text out of ''; it may"),
    (CHATML.replace("for m in messages", "for m in messages if m.role != 'system'"),
     {"system": "Be brief."}, "task.prompt.system: .* leaves the text out .* no task.prompt.sys"),
])
def test_a_template_that_leaves_a_text_out_is_refused(template, keys, message):
  with pytest.raises(ConfigError, match=message):
    prompted(template, **keys)


def checkpoint(folder, template, eos=BASE_END):
  tok = chat_tokenizer(template)
  tok.eos_token = eos
  tok.save_pretrained(folder)
  (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 256}))
  return tokenizer.load_tokenizer(folder)


@pytest.mark.parametrize("template, expected", [
    (CHATML, (256, END)), (LLAMA2, (256, END)), (CHATML.replace("<|im_end|>", BASE_END), (256,)),
    (CHATML.replace("<|im_end|>", ""), (256,)), (None, (256,)),
    (CHATML.replace("<|im_end|>", "~"), (256, ord("~") - 33)),
    ("{{ raise_exception('no') }}", (256,)), ({"a": CHATML, "b": CHATML}, (256,)),
])
def test_a_turn_that_ends_with_another_token_stops_a_row(tmp_path, template, expected, caplog):
  loaded = checkpoint(tmp_path, template)
  with caplog.at_level(logging.WARNING):
    assert tokenizer.stop_ids(loaded, tmp_path) == expected
  assert ("ends turns with" in caplog.text) == (len(expected) > 1)
  # What is rejected: what the files name.
  assert tokenizer.stop_ids(loaded, tmp_path, chat=False) == (256,)


def test_only_prompts_of_the_chat_template_stop_at_the_end_of_a_turn(tmp_path, caplog):
  loaded = checkpoint(tmp_path, CHATML)
  with caplog.at_level(logging.WARNING):
    assert make_task(TaskConfig(), 0, 2, tokenizer=loaded).stop_ids == (256,)
    assert "ends turns" not in caplog.text
    task = make_task(TaskConfig(prompt=PromptConfig("chat")), 0, 2, tokenizer=loaded)
    assert task.stop_ids == task.stop_ids == (256, END)
  assert caplog.text.count("ends turns") == 1


@pytest.mark.parametrize("keys, fix", [
    ({}, "task.prompt.style=completion."),
    ({"suffix": "!", "system": "s"}, "completion without task.prompt.system and task.prompt.suff"),
])
def test_the_fix_for_an_absent_template_is_accepted(keys, fix):
  with pytest.raises(ConfigError, match=f"no chat template. Fix: .*{fix}"):
    make_prompter(PromptConfig("chat", **keys), tokenizer.byte_tokenizer())
  assert make_prompter(PromptConfig("completion"), tokenizer.byte_tokenizer())("x")
