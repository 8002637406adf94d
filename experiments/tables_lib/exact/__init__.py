"""Tables and figures of the exact laboratory."""
