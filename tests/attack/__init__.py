"""Random attacks on the stated bounds: draw data, a neighbour and a training; compare what reaches the mechanisms."""
