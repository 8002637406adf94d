"""One-paper systems, a folder each. They import the core; the core knows none of them."""
