"""Every bad input ends in one line that names it, without a traceback, in silence or for ever."""

import campaign
import command_cases
import folder_cases
import machine_cases
import plugin_cases
import pytest
import reported_cases
import server_cases
import setting_cases

pytestmark = pytest.mark.slow

# Keys, config files, files of problems and checkpoints are refused without a process:
# runs/test_bad_input.py, experiments/commands/, tasks/test_bad_rows.py, models/hf/.
KINDS = {
    "reported tracebacks": reported_cases.TRACEBACKS,
    "reported silent": reported_cases.SILENT,
    "sizes": setting_cases.SIZES,
    "plugins": plugin_cases.CASES,
    "folders": folder_cases.CASES,
    "commands": command_cases.CASES,
    "servers": server_cases.CASES,
    "processes": machine_cases.PROCESSES,
    "environment": machine_cases.ENVIRONMENT,
    "sandbox": machine_cases.SANDBOX,
}
CASES = {f"{kind}: {name}": case for kind, table in KINDS.items() for name, case in table.items()}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
  return campaign.sources(tmp_path_factory.mktemp("sources"))


@pytest.mark.parametrize("name", CASES)
def test_a_bad_input_ends_in_one_line(name, sources, tmp_path):
  case = CASES[name]
  ended = campaign.execute(case, tmp_path, sources)
  assert campaign.verdict(ended, case.texts, case.status) == campaign.CLEAN, ended
