"""Config files that break, or that return something that is no config."""

from campaign import Case

HEAD = "from jaxrl_llm.config import base_config\n\n\ndef get_config(*arguments):\n"
BASE = HEAD + "  config = base_config()\n"
END = "\n  return config\n"


def file(source: str | bytes, *texts: str, path: str = "mine.py", **fields) -> Case:
  return Case(("--config={here}/mine.py", "--workdir={here}/new"), texts, files={path: source},
              **fields)


def value(code: str, *texts: str, **fields) -> Case:
  """Returns a case of a config to which a line of code does something."""
  return file(BASE + f"  {code}" + END, *texts, **fields)


CASES = {
    "empty": file("", "mine.py"),
    "a text": file(HEAD + "  return 'config'\n", "mine.py"),
    "a dict": file(HEAD + "  return {'seed': 'x'}\n", "seed = 'x'"),
    "recursion without end": file(HEAD + "  return get_config()\n", "mine.py", "RecursionError"),
    "error of many lines": file(HEAD + "  raise ValueError('a\\nb\\n' * 1000)\n", "mine.py",
                                "ValueError"),
    "error that cannot be printed": file(
        "class Odd(Exception):\n  def __str__(self):\n    raise ValueError('no')\n" + HEAD
        + "  raise Odd\n", "mine.py"),
    "not UTF-8": file(b"x = '\xff\xfe'\n", "mine.py"),
    "circular import": file("import mine\n" + HEAD + "  return mine.config\n", "mine.py"),
    "array for a number": value("config.seed = __import__('numpy').arange(3)", "seed"),
    "class for a section": value("config.rollout = dict", "mine.py", "dict"),
    "set for a tuple": value("config.profile = {1, 2}", "profile"),
    "surrogate in a path": value("config.pretrained = '\\ud800'", "pretrained"),
    "itself in itself": value("config.rollout = config", "rollout"),
    "placeholder": value("from ml_collections import config_dict; "
                         "config.iterations = config_dict.placeholder(int)", "iterations"),
    "reference that goes in circles": value(
        "config.seed = config.get_ref('iterations'); config.iterations = config.get_ref('seed')",
        "mine.py"),
    "preset of a file without presets": Case(
        ("--config={here}/mine.py:minpro", "--workdir={here}/new"), ("mine.py",),
        files={"mine.py": BASE.replace("*arguments", "") + END}),
    "two presets": Case(("--config=configs/quickstart.py:minpro:ctpo", "--workdir={here}/new"),
                        ("minpro:ctpo",)),
}
