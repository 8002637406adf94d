"""TVM: value models of tokens, and search with them."""
