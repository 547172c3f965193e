"""The ledger of side effects: what a task did to the outside, and what must not happen twice."""
