"""Systems past Zeno and sliding on guards, by relaxation."""
