"""Seconds are summed by file, and the table begins with the longest."""

import profile_table

XML = """<testsuites><testsuite>
<testcase classname="tests.a" name="x" time="1.5"/><testcase classname="tests.b" name="y" time="4"/>
<testcase classname="tests.a" name="z" time="1"/><testcase name="collection" time="9"/>
</testsuite></testsuites>"""


def test_seconds_are_summed_by_file(tmp_path):
  (tmp_path / "quick.xml").write_text(XML)
  spent = profile_table.seconds(tmp_path / "quick.xml")
  assert spent == {"tests.a": 2.5, "tests.b": 4.0}
  lines = profile_table.table({"quick": spent, "slow": spent}, rows=1).splitlines()
  assert lines[2] == "| tests.b | 4 | 4 |" and lines[-1] == "| all files | 6 | 6 |"
  assert not any("tests.a" in line for line in lines), "one row was asked for"
