"""First-order maps through events: saltation, B-derivatives, and the flow between them."""
