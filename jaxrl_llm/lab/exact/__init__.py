"""Small problems whose sums over all completions are exact."""
