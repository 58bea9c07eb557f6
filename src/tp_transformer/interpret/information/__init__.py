"""How much of a hidden state the value vector of one head holds (section 6.1)."""
