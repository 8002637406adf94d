"""Cloud TPU on this machine: `gcloud` writes down its arguments, and is the one worker it reaches.

A line of JSON per call goes to $GCLOUD_STUB_CALLS. The command of an ssh runs in $GCLOUD_STUB_HOME,
the worker's home folder.
"""

import json
import os
import subprocess
import sys

if __name__ == "__main__":
  arguments = sys.argv[2:]
  with open(os.environ["GCLOUD_STUB_CALLS"], "a") as calls:
    calls.write(json.dumps(arguments) + "\n")
  line = [text.removeprefix("--command=") for text in arguments if text.startswith("--command=")]
  home = os.environ["GCLOUD_STUB_HOME"]
  if line:
    sys.exit(subprocess.run(["bash", "-c", line[0]], cwd=home, check=False,
                            env=os.environ | {"HOME": home}).returncode)
