"""Makes a command that a test starts find no torch, which is installed for comparisons only.

transformers would import it, for two seconds of each start.
"""

import sys

sys.modules["torch"] = None
