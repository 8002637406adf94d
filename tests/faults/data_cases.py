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


def cut_parquet(path, pa, pq):
  pq.write_table(pa.table({"problem": ["1+1?"] * 50, "answer": ["2"] * 50}), path)
  path.write_bytes(path.read_bytes()[:-20])


def flipped_parquet(path, pa, pq):
  pq.write_table(pa.table({"problem": ["1+1?"] * 50, "answer": ["2"] * 50}), path)
  content = bytearray(path.read_bytes())
  content[10:60] = b"\xff" * 50
  path.write_bytes(bytes(content))


SET = {"evaluation.sets.a.path": "{here}/a.jsonl"}
HELD = {"task.data.heldout_path": "{here}/h.jsonl", "task.heldout_problems": "-1"}
WARM = {"warm_start.steps": "1", "warm_start.path": "{here}/w.jsonl"}
DEEP = '{"problem": ' + "[" * 100_000 + "]" * 100_000 + ', "answer": "1"}'
FILE = lines(GOOD)

CASES = {
    "no path": main({}, "task.data.path is empty", kind="data"),
    "file that is not there": data("x.jsonl", None, "x.jsonl"),
    "empty file": data("x.jsonl", "", "x.jsonl"),
    "blank lines": data("x.jsonl", "\n\n \n", "x.jsonl"),
    "unknown ending": data("x.txt", FILE, "x.txt"),
    "no ending": data("x", FILE, "x'"),
    "folder of nothing": data("d/.keep", "", "d", values={"task.data.path": "{here}/d"}),
    "folder of other files": data("d/readme.md", "x", "d", values={"task.data.path": "{here}/d"}),
    "address of the web": data("x", None, "https://host/x.jsonl",
                               values={"task.data.path": "https://host/x.jsonl"}),
    "hub name of spaces": data("x", None, "task.data.path",
                               values={"task.data.path": "some data"}),
    "null byte in a path": data("x", None, "task.data.path",
                                values={"task.data.path": "a\\0b.jsonl"}),
    "path of 5,000 letters": data("x", None, "File name too long",
                                  values={"task.data.path": "/" + "x" * 5000 + ".jsonl"}),
    "fewer rows than held out": data("x.jsonl", lines(GOOD[:2]), "task.heldout_problems"),
    "one row": data("x.jsonl", lines(GOOD[:1]), "task.heldout_problems"),
    "rows of texts": data("x.jsonl", '"a"\n"b"\n', "x.jsonl", "line 1"),
    "rows of lists": data("x.jsonl", "[1]\n[2]\n", "x.jsonl"),
    "an object of columns": data("x.json", json.dumps({"problem": ["a"], "answer": ["1"]}),
                                 "x.json"),
    "an object of splits": data("x.json", json.dumps({"train": GOOD}, indent=1), "x.json"),
    "no JSON": data("x.jsonl", "problem,answer\n1,2\n", "x.jsonl", "line 1"),
    "UTF-16": data("x.jsonl", FILE.encode("utf-16"), "x.jsonl"),
    "binary": data("x.jsonl", bytes(range(256)) * 8, "x.jsonl"),
    "two objects in a line": changed(2, json.dumps(GOOD[0]) + json.dumps(GOOD[1]), "JSON"),
    "100,000 brackets": changed(3, DEEP, "nested too deep"),
    "not a number": changed(1, '{"problem": NaN, "answer": "1"}', "problem"),
    "problem of nothing": changed(1, {"problem": None, "answer": "1"}, "problem"),
    "problem that is a number": changed(1, {"problem": 7, "answer": "1"}, "problem"),
    "problem of spaces": changed(1, {"problem": "  ", "answer": "1"}, "problem"),
    "problem of no message": changed(1, {"problem": [], "answer": "1"}, "problem"),
    "message of an unknown role": changed(
        1, {"problem": [{"role": "wizard", "content": "1+1?"}], "answer": "2"}, "problem"),
    "messages that end with an answer": changed(
        1, {"problem": [{"role": "assistant", "content": "2"}], "answer": "2"}, "problem"),
    "answer that is a list": changed(1, {"problem": "1?", "answer": ["1"]}, "answer"),
    "answer that is an object": changed(1, {"problem": "1?", "answer": {"a": 1}}, "answer"),
    "answer that is not a number": changed(1, {"problem": "1?", "answer": "cat"}, "answer", "cat"),
    "answer without end": changed(1, '{"problem": "1?", "answer": Infinity}', "answer"),
    "answer of 10,000 digits": changed(1, {"problem": "1?", "answer": "1e99999"}, "answer"),
    "row without an answer": changed(1, {"problem": "1?"}, "answer"),
    "the same question with two answers": data(
        "x.jsonl", lines([GOOD[0] | {"answer": str(i)} for i in range(12)]), "x.jsonl"),
    "gzip in name only": data("x.jsonl.gz", FILE, "x.jsonl.gz"),
    "gzip that is cut": data("x.jsonl.gz", gzip.compress(FILE.encode() * 50)[:-30], "x.jsonl.gz"),
    "gzip whose bytes are wrong": data(
        "x.jsonl.gz", gzip.compress(FILE.encode())[:20] + b"\xff" * 60, "x.jsonl.gz"),
    "table without a head": data("x.csv", "1+1?,2\n2+1?,3\n", "x.csv"),
    "table of semicolons": data("x.csv", "problem;answer\n1+1?;2\n2+1?;3\n", "x.csv"),
    "table of one column": data("x.tsv", "problem\n1+1?\n", "x.tsv"),
    "table of nothing": data("x.csv", "", "x.csv"),
    "table of a head": data("x.csv", "problem,answer\n", "x.csv"),
    "null bytes in a table": data("x.csv", b"problem,answer\n1+\0?,2\n" * 8, "x.csv"),
    "parquet in name only": data("x.parquet", FILE, "x.parquet"),
    "parquet of nothing": data("x.parquet", b"", "x.parquet"),
    "parquet that is cut": data("x.parquet", None, "x.parquet", prepare=parquet(cut_parquet)),
    "parquet of wrong pages": data("x.parquet", None, "x.parquet",
                                   prepare=parquet(flipped_parquet)),
    "parquet without the columns": data("x.parquet", None, "x.parquet", "question",
                                        prepare=columns(question=["1+1?"], truth=["2"])),
    "parquet of no rows": data("x.parquet", None, "x.parquet",
                               prepare=columns(problem=[], answer=[])),
    "parquet of nothing but nulls": data("x.parquet", None, "x.parquet", "problem",
                                         prepare=columns(problem=[None] * 9, answer=["1"] * 9)),
    "parquet of bytes": data("x.parquet", None, "x.parquet",
                             prepare=columns(problem=[b"\xff"] * 9, answer=[b"1"] * 9)),
    "parquet of dates": data(
        "x.parquet", None, "x.parquet", prepare=parquet(lambda path, pa, pq: pq.write_table(
            pa.table({"problem": ["1?"] * 9, "answer": pa.array([10**9] * 9, pa.timestamp("s"))}),
            path))),
    "mapping that is unknown": data("x.jsonl", FILE, "task.data.mapping", "gsm",
                                    values={"task.data.mapping": "gsm"}),
    "mapping of other columns": data("x.jsonl", FILE, "x.jsonl", values={
        "task.data.mapping": "gsm8k", "task.data.verifier": "auto"}),
    "verifier that is unknown": data("x.jsonl", FILE, "task.data.verifier", "number",
                                     values={"task.data.verifier": "number"}),
    "choice of a number": data("x.jsonl", FILE, "x.jsonl", values={"task.data.verifier": "choice"}),
    "column that is not there": data("x.jsonl", FILE, "task.data.answer_column", "solution",
                                     values={"task.data.answer_column": "solution"}),
    "column inside a text": data("x.jsonl", FILE, "x.jsonl", "problem.text",
                                 values={"task.data.prompt_column": "problem.text"}),
    "column of demonstrations that is not there": data(
        "x.jsonl", FILE, "task.data.demonstration_column",
        values={"task.data.demonstration_column": "work"}),
    "ids that repeat": data("x.jsonl", lines([row | {"id": "a"} for row in GOOD]), "x.jsonl", "'a'",
                            values={"task.data.id_column": "id"}),
    "weights of another number": data("x.jsonl", FILE, "task.data.weights",
                                      values={"task.data.weights": "(1.0, 2.0)"}),
    "weight below 0": data("x.jsonl", FILE, "task.data.weights",
                           values={"task.data.path": "{here}/x.jsonl,{here}/y.jsonl",
                                   "task.data.weights": "(1.0, -2.0)"}, more={"y.jsonl": FILE}),
    "the same file twice": data("x.jsonl", FILE, "task.data.path", values={
        "task.data.path": "{here}/x.jsonl,{here}/x.jsonl"}),
    "second file that is not there": data("x.jsonl", FILE, "y.jsonl", values={
        "task.data.path": "{here}/x.jsonl,{here}/y.jsonl"}),
    "split that is not there": data("d/test-0.jsonl", FILE, "task.data.split",
                                    values={"task.data.path": "{here}/d"}),
    "held-out file that is the training file": data(
        "x.jsonl", FILE, "x.jsonl", values={"task.data.heldout_path": "{here}/x.jsonl",
                                            "task.heldout_problems": "-1"}),
    "held-out file that is not there": data("x.jsonl", FILE, "h.jsonl", values=HELD),
    "held-out file of nothing": data("x.jsonl", FILE, "h.jsonl", values=HELD,
                                     more={"h.jsonl": ""}),
    "held-out file of long problems": data(
        "x.jsonl", FILE, "h.jsonl", values=HELD,
        more={"h.jsonl": lines([{"problem": "x" * 500, "answer": "1"}])}),
    "more held-out problems than the file has": data(
        "x.jsonl", FILE, "task.heldout_problems", values=HELD | {"task.heldout_problems": "99"},
        more={"h.jsonl": lines([{"problem": "x?", "answer": "1"}])}),
    "all rows held out": data("x.jsonl", FILE, "task.heldout_problems",
                              values={"task.heldout_problems": "12"}),
    "set that is not there": data("x.jsonl", FILE, "evaluation.sets.a.path", values=SET),
    "set of nothing": data("x.jsonl", FILE, "a.jsonl", values=SET, more={"a.jsonl": ""}),
    "set of a bad row": data("x.jsonl", FILE, "a.jsonl", "line 2", values=SET,
                             more={"a.jsonl": lines([GOOD[0], "{"])}),
    "set of another question column": data(
        "x.jsonl", FILE, "a.jsonl", "evaluation.sets.a.prompt_column", values=SET,
        more={"a.jsonl": lines([{"question": "1?", "answer": "1"}])}),
    "set of more problems than it has": data(
        "x.jsonl", FILE, "evaluation.sets.a.problems",
        values=SET | {"evaluation.sets.a.problems": "50"}, more={"a.jsonl": FILE}),
    "demonstrations of nothing": data("x.jsonl", FILE, "w.jsonl", values=WARM,
                                      more={"w.jsonl": ""}),
    "demonstrations without completions": data("x.jsonl", FILE, "w.jsonl", "completion",
                                               values=WARM, more={"w.jsonl": FILE}),
    "demonstrations too long": data(
        "x.jsonl", FILE, "w.jsonl", "rollout.max_new_tokens", values=WARM,
        more={"w.jsonl": lines([{"problem": "1?", "completion": "x" * 500}])}),
    "warm start without demonstrations": data("x.jsonl", FILE, "warm_start",
                                              values={"warm_start.steps": "1"}),
    "examples of other columns": data(
        "x.jsonl", FILE, "e.jsonl", values={"task.prompt.examples": "{here}/e.jsonl"},
        more={"e.jsonl": FILE}),
    "chat without a template": data("x.jsonl", FILE, "task.prompt.style",
                                    values={"task.prompt.style": "chat"}),
    "a pipe that nobody writes": data(
        "x.jsonl", None, "x.jsonl", prepare=lambda here: __import__("os").mkfifo(here / "x.jsonl"),
        limit=20.0),
    "a link to itself": data(
        "x.jsonl", None, "x.jsonl", prepare=lambda here: (here / "x.jsonl").symlink_to("x.jsonl")),
    "a link to nothing": data(
        "x.jsonl", None, "x.jsonl", prepare=lambda here: (here / "x.jsonl").symlink_to("y")),
    "a device": main({"task.data.path": "/dev/null"}, "/dev/null", kind="data"),
}
