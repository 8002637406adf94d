"""Files of problems, demonstrations and examples that cannot be used; tests/tasks/test_bad_rows.py
has single bad rows.
"""

import gzip
import json

from campaign import Case, main

GOOD = [{"problem": f"{i}+1?", "answer": str(i + 1)} for i in range(12)]


def lines(rows) -> str:
  return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def data(name: str, content: str | bytes | None, *texts: str, **fields) -> Case:
  """Returns a case of a run on a file of this name; None: it is not there."""
  values = {"task.data.path": "{here}/" + name} | fields.pop("values", {})
  files = {} if content is None else {name: content}
  return main(values, *texts, kind="data", files=files | fields.pop("more", {}), **fields)


def changed(position: int, row, *texts: str, **fields) -> Case:
  """Returns a case of the good rows with one of them replaced."""
  return data("x.jsonl", lines([*GOOD[:position], row, *GOOD[position:]]), "x.jsonl",
              f"line {position + 1}", *texts, **fields)


def parquet(write):
  """Returns what makes x.parquet in a case's folder."""
  def prepare(here):
    import pyarrow as pa
    from pyarrow import parquet as pq

    write(here / "x.parquet", pa, pq)

  return prepare


def columns(**values):
  return parquet(lambda path, pa, pq: pq.write_table(pa.table(values), path))


def flipped_parquet(path, pa, pq):
  pq.write_table(pa.table({"problem": ["1+1?"] * 50, "answer": ["2"] * 50}), path)
  content = bytearray(path.read_bytes())
  content[10:60] = b"\xff" * 50
  path.write_bytes(bytes(content))


SET = {"evaluation.sets.a.path": "{here}/a.jsonl"}
WARM = {"warm_start.steps": "1", "warm_start.path": "{here}/w.jsonl"}
FILE = lines(GOOD)

CASES = {
    "null byte in a path": data("x", None, "task.data.path",
                                values={"task.data.path": "a\\0b.jsonl"}),
    "path of 5,000 letters": data("x", None, "File name too long",
                                  values={"task.data.path": "/" + "x" * 5000 + ".jsonl"}),
    "an object of columns": data("x.json", json.dumps({"problem": ["a"], "answer": ["1"]}),
                                 "x.json"),
    "an object of splits": data("x.json", json.dumps({"train": GOOD}, indent=1), "x.json"),
    "UTF-16": data("x.jsonl", FILE.encode("utf-16"), "x.jsonl"),
    "messages that end with an answer": changed(
        1, {"problem": [{"role": "assistant", "content": "2"}], "answer": "2"}, "problem"),
    "answer of 10,000 digits": changed(1, {"problem": "1?", "answer": "1e99999"}, "answer"),
    "gzip in name only": data("x.jsonl.gz", FILE, "x.jsonl.gz"),
    "gzip that is cut": data("x.jsonl.gz", gzip.compress(FILE.encode() * 50)[:-30], "x.jsonl.gz"),
    "gzip whose bytes are wrong": data(
        "x.jsonl.gz", gzip.compress(FILE.encode())[:20] + b"\xff" * 60, "x.jsonl.gz"),
    "table of semicolons": data("x.csv", "problem;answer\n1+1?;2\n2+1?;3\n", "x.csv"),
    "null bytes in a table": data("x.csv", b"problem,answer\n1+\0?,2\n" * 8, "x.csv"),
    "parquet of wrong pages": data("x.parquet", None, "x.parquet",
                                   prepare=parquet(flipped_parquet)),
    "parquet without the columns": data("x.parquet", None, "x.parquet", "question",
                                        prepare=columns(question=["1+1?"], truth=["2"])),
    "parquet of nothing but nulls": data("x.parquet", None, "x.parquet", "problem",
                                         prepare=columns(problem=[None] * 9, answer=["1"] * 9)),
    "parquet of bytes": data("x.parquet", None, "x.parquet",
                             prepare=columns(problem=[b"\xff"] * 9, answer=[b"1"] * 9)),
    "column inside a text": data("x.jsonl", FILE, "x.jsonl", "problem.text",
                                 values={"task.data.prompt_column": "problem.text"}),
    "the same file twice": data("x.jsonl", FILE, "task.data.path", values={
        "task.data.path": "{here}/x.jsonl,{here}/x.jsonl"}),
    "set of a bad row": data("x.jsonl", FILE, "a.jsonl", "line 2", values=SET,
                             more={"a.jsonl": lines([GOOD[0], "{"])}),
    "set of more problems than it has": data(
        "x.jsonl", FILE, "evaluation.sets.a.problems",
        values=SET | {"evaluation.sets.a.problems": "50"}, more={"a.jsonl": FILE}),
    "demonstrations of nothing": data("x.jsonl", FILE, "w.jsonl", values=WARM,
                                      more={"w.jsonl": ""}),
    "demonstrations too long": data(
        "x.jsonl", FILE, "w.jsonl", "rollout.max_new_tokens", values=WARM,
        more={"w.jsonl": lines([{"problem": "1?", "completion": "x" * 500}])}),
    "examples of other columns": data(
        "x.jsonl", FILE, "e.jsonl", values={"task.prompt.examples": "{here}/e.jsonl"},
        more={"e.jsonl": FILE}),
    "a pipe that nobody writes": data(
        "x.jsonl", None, "x.jsonl", prepare=lambda here: __import__("os").mkfifo(here / "x.jsonl"),
        limit=20.0),
    "a link to itself": data(
        "x.jsonl", None, "x.jsonl", prepare=lambda here: (here / "x.jsonl").symlink_to("x.jsonl")),
    "a device": main({"task.data.path": "/dev/null"}, "/dev/null", kind="data"),
}
