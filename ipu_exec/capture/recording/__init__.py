"""How each ATen call becomes an operator of the graph."""
