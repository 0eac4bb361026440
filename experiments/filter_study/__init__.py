"""Whether filters are consistent, over many synthetic runs."""
